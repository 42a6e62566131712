// What a person should hear of texts before training on them: files without text, and bytes that are no text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/input.h"

namespace bhyt {

// Bytes that no text has: NUL, and those that break UTF-8 (begin a character that does not go on, or go on with none).
std::uint64_t strange_bytes(std::string_view text);

struct TextFacts {
  std::uint64_t bytes = 0, strange = 0;
  bool written = false;  // anything but white space

  void add(std::string_view text);
};

// Gathers the facts file by file. Above kStrange of a file's bytes it may be no text at all; the byte tokenizer may be meant to learn such
// data, so that is a warning.
class TextCheck {
 public:
  static constexpr double kStrange = 0.01;

  explicit TextCheck(const std::vector<InputFile>& files) : files_(files), facts_(files.size()) {}
  void add(std::size_t file, const TextFacts& facts);
  // Throws Error when no file holds any text ("nothing to DO: …"); warns of files without, and of files that may be no text. Returns what
  // it warned of.
  std::vector<std::string> tell(const char* what_to_do) const;

 private:
  const std::vector<InputFile>& files_;
  std::vector<TextFacts> facts_;
};

}  // namespace bhyt

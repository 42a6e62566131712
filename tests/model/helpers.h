// Small helpers of the tests: a folder of its own that is removed afterwards, files, messages.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "core/error.h"
#include "tests/message_of.h"
#include "tests/temporary_folder.h"

namespace bhyt::test {

class TempDir {
 public:
  const std::filesystem::path& path() const { return folder_.path; }
  std::filesystem::path operator/(const std::string& name) const { return folder_.path / name; }

 private:
  TemporaryFolder folder_;
};

inline void write_file(const std::filesystem::path& p, const std::string& text) { std::ofstream(p, std::ios::binary) << text; }
inline std::string read_file(const std::filesystem::path& p) {
  std::ifstream in(p, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline ::testing::AssertionResult has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "\"" << part << "\" is not in: " << text;
}

}  // namespace bhyt::test

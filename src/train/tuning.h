// tuning.json of a run directory: the algorithms that this GPU's library was found to be fastest with, shape by shape. Reading it back is
// what makes the bits of a resumed run (or of a copy of it) those of the first.
#pragma once

#include <map>
#include <string>

#include "core/context.h"
#include "io/files.h"

namespace bhyt::train {

struct Tuning {
  std::string device, library;                    // "NVIDIA H200", "cuBLASLt 130002"
  std::map<std::string, std::string> algorithms;  // by shape, as ops/gemm/tuning.h has them
  bool operator==(const Tuning&) const = default;
};

std::string tuning_text(const Tuning& tuning);
Tuning parse_tuning(const std::string& text);  // Error when it is damaged
// What the file holds for this device and library; with a warning nothing, when it is damaged or of another.
Tuning read_tuning(const fs::path& file, const std::string& device, const std::string& library);

// Keeps the file of a run on a GPU; does nothing on a CPU.
class TuningFile {
 public:
  // Hands what is there to the backend: before the first product. writes: whether this process keeps the file.
  TuningFile(fs::path file, Context& ctx, bool writes = true);
  void update();  // writes it, if more was chosen since

 private:
  fs::path file_;
  Context& ctx_;
  bool writes_;
  Tuning written_;
};

}  // namespace bhyt::train

// TensorBoard event files: scalars, as TensorFlow's own writer lays them down.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/files.h"

namespace bhyt::train {

// CRC-32C (Castagnoli), going on from the CRC of what stood before (0 at the start).
std::uint32_t crc32c(std::string_view bytes, std::uint32_t before = 0);

using Scalar = std::pair<std::string_view, float>;  // tag, value

// Whole records: length, masked CRCs, event.
std::string version_record(double wall_time);
std::string scalar_record(double wall_time, std::int64_t step, const std::vector<Scalar>& scalars);

class EventFile {
 public:
  EventFile() = default;
  // Goes on with the event file in `dir`, cut after the last whole record of step ≤ `last_step`; makes one where there is none.
  // again: a tag that will be written once more for that step, and is cut off, too.
  EventFile(const fs::path& dir, std::int64_t last_step, double now, std::string_view again = "");

  void write(double wall_time, std::int64_t step, const std::vector<Scalar>& scalars) {
    file_.append(scalar_record(wall_time, step, scalars));
  }
  void sync() { file_.sync(); }
  const fs::path& path() const { return file_.path(); }

 private:
  AppendFile file_;
};

}  // namespace bhyt::train

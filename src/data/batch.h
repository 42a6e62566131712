// A batch on the host, as a source of data hands it to whoever trains.
#pragma once

#include <cstdint>
#include <vector>

namespace bhyt {

// Row r: tokens[r·T + t] is followed by targets[r·T + t].
struct HostBatch {
  std::int64_t batch = 0, seq = 0;
  // Where these are some rows of a larger batch, and `used` and `examples` are of that: its rows, its scored tokens, and the first row.
  std::int64_t all_rows = 0, all_scored = 0, first_row = 0;
  std::int64_t used = 0;                       // tokens of the data among them, where the rest fills rows up; 0 = all
  std::int64_t examples = 0;                   // conversations that the rows were filled with; 0 where a row is a row of the data
  std::vector<std::int32_t> tokens, targets;   // [B,T]; a negative target is not scored
  std::vector<std::int32_t> positions, first;  // [B,T] where documents do not see each other, else empty
};

}  // namespace bhyt

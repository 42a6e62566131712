// How large a planned run will be, known before it is made.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "study/grid.h"

namespace bhyt::study {

// Settles what `auto` means in a planned run; remembers the vocabularies of data.
class Settler {
 public:
  explicit Settler(train::Work work) : work_(work) {}
  // With device, type and vocabulary; nothing where its data, and so its vocabulary, is not there.
  std::optional<train::RunConfig> operator()(const PlannedRun& run);

 private:
  train::Work work_;
  std::map<std::string, std::int64_t> vocabularies_;  // by the data section; 0: cannot be read
};

// Bytes on its device that the largest of these takes, alone on the machine; nothing where one of them is not known.
std::optional<double> largest_memory(const std::vector<const PlannedRun*>& runs, train::Work work);

}  // namespace bhyt::study

// A question's score as the tests of results state it: right or wrong, without likelihoods.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "eval/scored.h"

namespace bhyt::test {

inline Scored answer(const std::string& task, std::int64_t document, double acc, std::optional<double> acc_norm = {},
                     std::int64_t seed = 42) {
  return {task, document, seed, Graded{.choices = {}, .acc = acc, .acc_norm = acc_norm}};
}

}  // namespace bhyt::test

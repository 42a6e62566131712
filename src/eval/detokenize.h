// What lm-evaluation-harness makes of a wikitext page before it is scored: spaces around punctuation, brackets and quotes are taken out
// again.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace bhyt {

std::string detokenize(std::string_view page);

// Pieces between runs of white space, empty ones at the ends counted: len(re.split(r"\s+", page)) of Python.
std::int64_t count_words(std::string_view page);

}  // namespace bhyt

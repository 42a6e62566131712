// What bhyt eval prints.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "eval/evaluate.h"
#include "eval/findings.h"

namespace bhyt::cli {

// One model and seed: the harness's table or JSON. Several: a table of models by tasks, and the differences from the first model. `html`:
// a file for the same as a page, or "".
void print_results(const Evaluation& evaluation, const std::vector<ScoredModel>& models, bool json, const std::string& html);
// How much there is to do, and three questions.
void show_plan(const Evaluation& evaluation, const Tokenizer* tokenizer, const Reading& reading, const ChatFormat* chat);
struct PrintRequests {
  bool json = false;
  bool each = true;  // every request's own, which may stand in a file already
};
void print_requests(std::span<const Likelihood> all, const PrintRequests& how);

}  // namespace bhyt::cli

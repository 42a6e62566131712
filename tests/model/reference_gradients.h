// Gradients of the naive model, exact or as a bf16 program has them.
#pragma once

#include "tests/model/reference_model.h"
#include "tests/model/tape.h"

namespace bhyt::testing {

// Of the mean loss over `rows`, by parameter; any tape will do.
inline NamedValues reference_gradients(Tape& tape, Arithmetic arithmetic, const ModelConfig& config, const std::vector<double>& c_attn,
                                       const NamedValues& weights, const std::vector<std::vector<int>>& rows) {
  tape.begin(arithmetic);
  NamedValuesOf<Var> leaves;
  for (const auto& [name, values] : weights) {
    std::vector<Var>& to = leaves[name];
    for (const double v : values) to.emplace_back(tape, v);
  }
  ReferenceModelOf<Var> model(config, c_attn);
  model.freeze(weights);
  const std::vector<double> by_node = tape.gradients(model.loss(leaves, rows).node);
  NamedValues out;
  for (const auto& [name, of] : leaves) {
    std::vector<double>& to = out[name];
    for (const Var& v : of) to.push_back(by_node[v.node]);
  }
  return out;
}

}  // namespace bhyt::testing

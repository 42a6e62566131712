// A model dissected on a text: what its residual stream, norms and attention do, layer by layer, and what each block is worth.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "analysis/layer_watch.h"
#include "core/schema.h"

namespace bhyt::analysis {

struct AnalyzeOptions {
  std::vector<std::int64_t> layers;  // from 1; empty: all
  std::int64_t seq = 1;              // tokens of a row
  // Of the gradient and of the losses with a block left out: the first rows, as many as these hold, at least one.
  std::int64_t batch_tokens = 2048;
  std::function<void(double share)> progress = {};
};

struct LayerAnalysis {
  std::int64_t layer = 0;  // from 1
  LayerWatch::Layer seen;
  double gradient = 0;  // norm of the gradient of all its parameters
  double left_out = 0;  // mean loss of the first rows when the stream goes past this block unchanged
};

struct Analysis {
  std::int64_t tokens = 0, rows = 0, seq = 0, batch_tokens = 0;
  double loss = 0;        // mean over all tokens
  double batch_loss = 0;  // over the first rows, of which the gradients are and what left_out compares with
  StreamStats embedding;
  std::vector<LayerAnalysis> layers;
  struct Gradients {
    double embedding = 0, end = 0, all = 0;  // of the embedding (and the head, where they are one), of the last norm and the head, of all
  } gradients;
};

// tokens: rows·seq + 1 of them are read, as many rows as there are; Error where there is not one, and where the model's numbers are not
// finite, with the layer that they come from. The model must be as it was loaded, not repacked.
Analysis analyze(Context& ctx, const Model& model, std::span<const std::int32_t> tokens, const AnalyzeOptions& options);

// The loss with a block left out, of rows·seq + 1 tokens: what the others make of the stream without what it adds, each with its own
// layer's constants.
std::vector<double> losses_without(Context& ctx, const Model& model, std::span<const std::int32_t> tokens, std::int64_t seq,
                                   const std::vector<std::int64_t>& layers);

// What docs/analysis.md describes; points: of each scatter.
schema::Json to_json(const Analysis& a, std::int64_t points);

// For people, in 140 columns.
std::vector<std::string> tables(const Analysis& a);

}  // namespace bhyt::analysis

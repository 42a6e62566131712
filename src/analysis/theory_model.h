// A model's sublayers against what is said of them. What is measured is taken apart into factors, one for each assumption, whose product is
// the whole difference: measured = claimed · Π factors.
#pragma once

#include "analysis/depth.h"
#include "analysis/theory.h"

namespace bhyt::analysis {

// One layer of attention, into a finding that all layers share.
void check_attention(Context& ctx, const Model& model, const TokenRows& rows, const LayerValues& v, const SiteValues& site, Finding& f);
void check_mlp(Context& ctx, const Model& model, const LayerValues& v, Finding& f);

// Mean over tokens and heads of Σ w², w the softmax weights: 1 over the number of tokens that are looked at. q [N,H·D], k [N,K·D].
double attention_concentration(Context& ctx, const ModelConfig& config, const TokenRows& rows, const Matrix& q, const Matrix& k);

}  // namespace bhyt::analysis

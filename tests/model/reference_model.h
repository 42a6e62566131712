// The whole model in double, as naively as it can be written: every loop spelled out, every statistic recomputed. The oracle of model_test.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "ops/norm/methods.h"

namespace bhyt::testing {

using Weights = std::map<std::string, std::vector<double>>;  // by Hugging Face name

class ReferenceModel {
 public:
  ReferenceModel(const ModelConfig& c, std::vector<double> c_attn)
      : c_(c), plan_(plan_norms(c.norm, c.layers, c.d, c.eps)), c_attn_(std::move(c_attn)) {}

  // What is held constant while weights are varied: λ and γ inside C, and rms(x')² in the auxiliary loss.
  void freeze(const Weights& w) { frozen_ = w; }
  void freeze_exact(bool on) { use_exact_ = on; }

  // Mean next-token loss, plus the auxiliary loss. tokens: T+1 per row.
  double loss(const Weights& w, const std::vector<std::vector<int>>& rows) {
    double nll = 0, aux = 0, scored = 0;
    std::size_t seen = 0;
    for (const auto& row : rows) {
      const std::size_t t = row.size() - 1;
      auto x = embed(w, row, t);
      for (std::int64_t l = 0; l < c_.layers; ++l) aux += block(w, x, l, seen);
      for (std::size_t i = 0; i < t; ++i) {
        const auto logits = head(w, apply(plan_.last, w, "model.norm", x[i], 0));
        double top = logits[0], sum = 0;
        for (double v : logits) top = std::max(top, v);
        for (double v : logits) sum += std::exp(v - top);
        nll += top + std::log(sum) - logits[static_cast<std::size_t>(row[i + 1])];
      }
      scored += static_cast<double>(t);
    }
    return nll / scored + (plan_.approximated ? c_.norm.aux_loss * aux / (scored * plan_.approximated) : 0);
  }

 private:
  using Row = std::vector<double>;
  using Rows = std::vector<Row>;

  static double get(const Weights& w, const std::string& name, double otherwise) {
    const auto it = w.find(name);
    return it == w.end() ? otherwise : it->second[0];
  }
  static Row product(const std::vector<double>& m, const Row& x) {  // m [out,in]
    Row y(m.size() / x.size());
    for (std::size_t i = 0; i < y.size(); ++i)
      for (std::size_t j = 0; j < x.size(); ++j) y[i] += m[i * x.size() + j] * x[j];
    return y;
  }
  static double mean_square(const Row& x) {
    double s = 0;
    for (double v : x) s += v * v;
    return s / static_cast<double>(x.size());
  }

  Row apply(const SitePlan& p, const Weights& w, const std::string& name, const Row& x, double given) const {
    const double n = static_cast<double>(x.size()), ms = mean_square(x);
    double mean = 0, var = 0, dot = 0;
    for (double v : x) mean += v / n;
    for (double v : x) var += (v - mean) * (v - mean) / n;
    if (p.seed)
      for (std::size_t j = 0; j < x.size(); ++j) dot += x[j] * w.at(name + ".direction")[j];
    const double k = p.factor * get(w, name + ".lam", 1) * get(w, name + ".alpha", 1), eps = p.eps;
    double a = k, centre = 0;
    if (p.stat == Stat::rms) a = k / std::sqrt(ms + eps);
    if (p.stat == Stat::mean_var) a = k / std::sqrt(var + eps), centre = mean;
    if (p.stat == Stat::mean_std) a = k / (std::sqrt(var + eps) + p.factor * std::fabs(mean));
    if (p.stat == Stat::given) a = k / std::sqrt(given + eps);
    Row z(x.size());
    for (std::size_t j = 0; j < x.size(); ++j) {
      const double u = a * (x[j] - centre) + get(w, name + ".shift", 0), f = p.map == Map::tanh  ? std::tanh(u)
                                                                             : p.map == Map::erf ? std::erf(u)
                                                                                                 : u;
      z[j] = (w.at(name + ".weight")[j] + (p.seed ? std::tanh(dot) * w.at(name + ".gate")[j] : 0)) * f;
      if (p.beta) z[j] += w.at(name + ".bias")[j];
    }
    return z;
  }

  Rows embed(const Weights& w, const std::vector<int>& row, std::size_t t) const {
    double scale = 1;
    if (c_.embedding_scale == EmbeddingScaleKind::sqrt_d) scale = std::sqrt(static_cast<double>(c_.d));
    if (c_.embedding_scale == EmbeddingScaleKind::learned) scale = w.at("model.shared_scale")[0];
    Rows x(t, Row(static_cast<std::size_t>(c_.d)));
    for (std::size_t i = 0; i < t; ++i)
      for (std::size_t j = 0; j < x[i].size(); ++j)
        x[i][j] = scale * w.at("model.embed_tokens.weight")[static_cast<std::size_t>(row[i]) * x[i].size() + j];
    return x;
  }
  Row head(const Weights& w, const Row& z) const { return product(w.at(c_.tied ? "model.embed_tokens.weight" : "lm_head.weight"), z); }

  // One head-sized stretch of v, turned by position t.
  void turn(Row& v, std::size_t at, std::size_t t) const {
    const auto d = static_cast<std::size_t>(c_.head_dim), half = d / 2;
    for (std::size_t j = 0; j < half; ++j) {
      const double angle = static_cast<double>(t) * std::pow(c_.rope_theta, -2.0 * static_cast<double>(j) / static_cast<double>(d));
      const double a = v[at + j], b = v[at + j + half];
      v[at + j] = a * std::cos(angle) - b * std::sin(angle);
      v[at + j + half] = b * std::cos(angle) + a * std::sin(angle);
    }
  }

  Rows attend(const Weights& w, const std::string& n, const Rows& z) const {
    const auto d = static_cast<std::size_t>(c_.head_dim);
    const auto heads = static_cast<std::size_t>(c_.heads), group = heads / static_cast<std::size_t>(c_.kv_heads);
    Rows q, k, v, out;
    for (std::size_t t = 0; t < z.size(); ++t) {
      q.push_back(product(w.at(n + "self_attn.q_proj.weight"), z[t]));
      k.push_back(product(w.at(n + "self_attn.k_proj.weight"), z[t]));
      v.push_back(product(w.at(n + "self_attn.v_proj.weight"), z[t]));
      for (std::size_t h = 0; h < heads; ++h) turn(q[t], h * d, t);
      for (std::size_t h = 0; h < heads / group; ++h) turn(k[t], h * d, t);
    }
    for (std::size_t t = 0; t < z.size(); ++t) {
      Row o(heads * d);
      for (std::size_t h = 0; h < heads; ++h) {
        Row p(t + 1);
        double top = -1e300, sum = 0;
        for (std::size_t s = 0; s <= t; ++s) {
          for (std::size_t j = 0; j < d; ++j) p[s] += q[t][h * d + j] * k[s][h / group * d + j] / std::sqrt(static_cast<double>(d));
          top = std::max(top, p[s]);
        }
        for (double& e : p) sum += e = std::exp(e - top);
        for (std::size_t s = 0; s <= t; ++s)
          for (std::size_t j = 0; j < d; ++j) o[h * d + j] += p[s] / sum * v[s][h / group * d + j];
      }
      out.push_back(product(w.at(n + "self_attn.o_proj.weight"), o));
    }
    return out;
  }

  // Updates x; returns the sum of the auxiliary terms of this block.
  double block(const Weights& w, Rows& x, std::int64_t l, std::size_t& seen) {
    const BlockPlan& b = plan_.blocks[static_cast<std::size_t>(l)];
    const std::string n = "model.layers." + std::to_string(l) + ".";
    Rows z;
    for (const Row& r : x) z.push_back(apply(b.site1, w, n + "input_layernorm", r, 0));
    const Rows h = attend(w, n, z);
    double aux = 0;
    for (std::size_t t = 0; t < x.size(); ++t) {
      const double given = b.site2.stat == Stat::given ? second_statistic(w, n, b, l, mean_square(x[t]), seen) : 0;
      const Row branch = b.out1 ? apply(*b.out1, w, n + "attn_out_norm", h[t], 0) : h[t];
      for (std::size_t j = 0; j < x[t].size(); ++j) x[t][j] += branch[j];
      if (b.uses_constant && c_.norm.aux_loss > 0) aux += gap(given, mean_square(x[t]), seen);
      const Row z2 = apply(b.site2, w, n + "post_attention_layernorm", x[t], given);
      const Row gate = product(w.at(n + "mlp.gate_proj.weight"), z2), up = product(w.at(n + "mlp.up_proj.weight"), z2);
      Row s(gate.size());
      for (std::size_t j = 0; j < s.size(); ++j) s[j] = gate[j] / (1 + std::exp(-gate[j])) * up[j];
      Row down = product(w.at(n + "mlp.down_proj.weight"), s);
      if (b.out2) down = apply(*b.out2, w, n + "mlp_out_norm", down, 0);
      for (std::size_t j = 0; j < x[t].size(); ++j) x[t][j] += down[j];
      ++seen;
    }
    return aux;
  }

  double second_statistic(const Weights& w, const std::string& n, const BlockPlan& b, std::int64_t l, double ms, std::size_t seen) {
    double constant = 0;
    if (b.uses_constant) {
      const double k = b.site1.factor * get(frozen_, n + "input_layernorm.lam", 1);
      constant = c_attn_[static_cast<std::size_t>(l)] * k * k;
      if (b.gamma_in_constant) constant *= mean_square(frozen_.at(n + "input_layernorm.weight"));
    }
    if (c_.norm.stop_gradient) ms = held(ms, seen, ms_);
    const double tilt = get(w, n + "var_eta", 0) + get(w, n + "var_cross_beta", 0),
                 weight = get(w, n + "var_beta", 1) * get(w, n + "var_alpha", 1);
    return b.calibration * (ms * (1 + tilt) + weight * constant);
  }
  double gap(double given, double exact, std::size_t seen) {
    const double g = std::log(given + 1e-8) - std::log(held(exact, seen, exact_) + 1e-8);
    return g * g;
  }
  // The first pass (freeze_exact(false)) records, later ones replay: what a stopped gradient means to differences.
  double held(double value, std::size_t seen, std::vector<double>& record) const {
    if (use_exact_) return record[seen];
    record.resize(std::max(record.size(), seen + 1));
    return record[seen] = value;
  }

  ModelConfig c_;
  NormPlan plan_;
  std::vector<double> c_attn_;
  Weights frozen_;
  bool use_exact_ = false;
  std::vector<double> ms_, exact_;
};

}  // namespace bhyt::testing

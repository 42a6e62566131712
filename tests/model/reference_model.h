// The whole model, as naively as it can be written: every loop spelled out, every statistic recomputed. The oracle of model_test.
// It reads the method table and the config's options itself, not plan_norms, so that a mistake there shows.
// In double, or in numbers that bring their own dot, rounded, value_of and the functions used below (tape.h). rounded() stands where a
// bf16 program stores a tensor, once for each: what an operation computes inside (statistics, sums, the softmax) it computes in fp32.
#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "model/config.h"
#include "ops/norm/methods.h"

namespace bhyt::testing {

template <class T>
using NamedValuesOf = std::map<std::string, std::vector<T>>;  // by Hugging Face name
using NamedValues = NamedValuesOf<double>;

// Beside those that another number brings.
using std::erf, std::exp, std::fabs, std::log, std::max, std::sqrt, std::tanh;
inline double dot(const double* a, const double* b, std::size_t n) {
  double sum = 0;
  for (std::size_t i = 0; i < n; ++i) sum += a[i] * b[i];
  return sum;
}
inline double rounded(double x) { return x; }
inline double value_of(double x) { return x; }

template <class T>
class ReferenceModelOf {
 public:
  using Row = std::vector<T>;
  using Rows = std::vector<Row>;
  using Weights = NamedValuesOf<T>;
  // What a forward came by, token after token, by layer from 0.
  struct Trace {
    Rows embedding;
    std::map<std::int64_t, Rows> z1, q, k, after_attention, given, z2, block_output;  // given: the second site's s̃², alone in its row
  };

  ReferenceModelOf(const ModelConfig& c, std::vector<double> c_attn) : c_(c), c_attn_(std::move(c_attn)) {}

  // What is held constant while weights are varied: λ and γ inside C, and rms(x')² in the auxiliary loss.
  void freeze(const NamedValues& w) { frozen_ = w; }
  void freeze_exact(bool on) { use_exact_ = on; }
  void record(Trace* trace) { trace_ = trace; }
  void leave_out(std::int64_t l) { left_out_ = l; }  // from 0; the stream goes past that block

  // Mean next-token loss, plus the auxiliary loss. tokens: T+1 per row.
  T loss(const Weights& w, const std::vector<std::vector<int>>& rows) {
    T nll = 0, aux = 0;
    double scored = 0;
    std::size_t seen = 0;
    for (const auto& row : rows) {
      const std::size_t t = row.size() - 1;
      auto x = embed(w, row, t);
      if (trace_) trace_->embedding.insert(trace_->embedding.end(), x.begin(), x.end());
      for (std::int64_t l = 0; l < c_.layers; ++l)
        if (l != left_out_) aux += block(w, x, l, seen);
      for (std::size_t i = 0; i < t; ++i) {
        const auto logits = head(w, apply(last_site(), w, "model.norm", x[i], 0));
        T top = logits[0], sum = 0;
        for (const T& v : logits) top = max(top, v);
        for (const T& v : logits) sum += exp(v - top);
        nll += top + log(sum) - logits[static_cast<std::size_t>(row[i + 1])];
      }
      scored += static_cast<double>(t);
    }
    int approximated = 0;
    for (std::int64_t l = 1; l <= c_.layers; ++l) approximated += second_stat(l) == SiteStat::approximate;
    return nll / scored + (approximated ? c_.norm.aux_loss * aux / (scored * approximated) : T(0));
  }

 private:
  // One norm as the formulas say it: z = outside · (γ ⊙ f(inside·scalar·x/s + c) + β).
  struct Site {
    SiteStat stat;
    Map map;
    double inside = 1, outside = 1, eps = 0;
  };

  double kappa(std::int64_t layer) const {
    const double power[] = {0, -0.5, 0.5, 0.25};  // constant, decay, grow, mild_grow
    return c_.norm.kappa * std::pow(static_cast<double>(layer), power[static_cast<int>(c_.norm.kappa_schedule)]);
  }
  bool in_range(std::int64_t layer) const {
    return c_.norm.last_layer == 0 || (c_.norm.first_layer <= layer && layer <= c_.norm.last_layer);
  }
  const Method& method_at(std::int64_t layer) const { return method(in_range(layer) ? c_.norm.method : c_.norm.elsewhere); }
  // The second site's statistic; exact layers compute the mean square.
  SiteStat second_stat(std::int64_t layer) const {
    const SiteStat s = method_at(layer).site2;
    bool exact = layer <= c_.norm.exact_first;
    for (const std::int64_t l : c_.norm.exact_list) exact |= l == layer;
    return exact && (s == SiteStat::approximate || s == SiteStat::block_input) ? SiteStat::rms : s;
  }
  // place: 0 attention, 1 MLP. layer from 1.
  Site site(std::int64_t layer, std::size_t place) const {
    const Method& m = method_at(layer);
    Site s{place == 0 ? m.site1 : second_stat(layer), m.map};
    s.eps = m.own_eps ? 1e-6 : c_.eps;
    if (m.scale == ScaleKind::lambda) s.inside /= kappa(layer);
    if (m.depth == Depth::inv_sqrt) s.inside /= std::sqrt(static_cast<double>(layer));
    if (m.scale == ScaleKind::lambda && c_.norm.gain == Gain::fixed_unit) s.outside *= kappa(layer) / c_.norm.lambda[place];
    if (c_.norm.depth_factor == Depth::inv_sqrt) s.outside /= std::sqrt(static_cast<double>(layer));
    return s;
  }
  Site plain_site() const { return {SiteStat::rms, Map::id, 1, 1, c_.eps}; }
  Site last_site() const {
    const Method& m = method(c_.norm.method);
    if (m.end == End::own) return {m.site1, m.map, 1, 1, m.own_eps ? 1e-6 : c_.eps};
    if (m.end == End::rms_or_exact && c_.norm.lambda_last > 0) return {SiteStat::rms, Map::tanh, 1 / kappa(c_.layers + 1), 1, 1e-6};
    return plain_site();
  }

  template <class U>
  static U get(const NamedValuesOf<U>& w, const std::string& name, double otherwise) {
    const auto it = w.find(name);
    return it == w.end() ? U(otherwise) : it->second[0];
  }
  static Row product(const Row& m, const Row& x) {  // m [out,in]
    Row y(m.size() / x.size());
    for (std::size_t i = 0; i < y.size(); ++i) y[i] = rounded(dot(&m[i * x.size()], x.data(), x.size()));
    return y;
  }
  template <class U>
  static U mean_square(const std::vector<U>& x) {
    return dot(x.data(), x.data(), x.size()) / static_cast<double>(x.size());
  }

  static T map_value(Map map, const T& u) { return map == Map::tanh ? tanh(u) : map == Map::erf ? erf(u) : u; }

  Row apply(const Site& p, const Weights& w, const std::string& name, const Row& x, const T& given) const {
    const double n = static_cast<double>(x.size());
    const T ms = mean_square(x);
    T mean = 0, var = 0, gate = 0;
    for (const T& v : x) mean += v / n;
    for (const T& v : x) var += (v - mean) * (v - mean) / n;
    const bool gated = w.contains(name + ".gate");
    if (gated) gate = tanh(dot(x.data(), w.at(name + ".direction").data(), x.size()));
    const T k = p.inside * get(w, name + ".lam", 1) * get(w, name + ".alpha", 1);
    T a = k, centre = 0;
    if (p.stat == SiteStat::rms) a = k / sqrt(ms + p.eps);
    if (p.stat == SiteStat::mean_var) {
      a = k / sqrt(var + p.eps);
      centre = mean;
    }
    if (p.stat == SiteStat::mean_std) a = k / (sqrt(var + p.eps) + p.inside * fabs(mean));
    if (p.stat == SiteStat::approximate || p.stat == SiteStat::block_input) a = k / sqrt(given + p.eps);
    const T shift = get(w, name + ".shift", 0);
    const Row& gamma = w.at(name + ".weight");
    const Row beta = w.contains(name + ".bias") ? w.at(name + ".bias") : Row(x.size());
    Row z(x.size());
    for (std::size_t j = 0; j < x.size(); ++j) {
      const T f = map_value(p.map, a * (x[j] - centre) + shift);
      z[j] = (gamma[j] + (gated ? gate * w.at(name + ".gate")[j] : T(0))) * f + beta[j];
      z[j] = rounded(z[j] * p.outside);
    }
    return z;
  }

  Rows embed(const Weights& w, const std::vector<int>& row, std::size_t t) const {
    T scale = 1;
    if (c_.embedding_scale == EmbeddingScaleKind::sqrt_d) scale = std::sqrt(static_cast<double>(c_.d));
    if (c_.embedding_scale == EmbeddingScaleKind::learned) scale = w.at("model.shared_scale")[0];
    Rows x(t, Row(static_cast<std::size_t>(c_.d)));
    for (std::size_t i = 0; i < t; ++i)
      for (std::size_t j = 0; j < x[i].size(); ++j)
        x[i][j] = rounded(scale * w.at("model.embed_tokens.weight")[static_cast<std::size_t>(row[i]) * x[i].size() + j]);
    return x;
  }
  Row head(const Weights& w, const Row& z) const { return product(w.at(c_.tied ? "model.embed_tokens.weight" : "lm_head.weight"), z); }

  // One head-sized stretch of v, turned by position t.
  void turn(Row& v, std::size_t at, std::size_t t) const {
    const auto d = static_cast<std::size_t>(c_.head_dim), half = d / 2;
    for (std::size_t j = 0; j < half; ++j) {
      const double angle = static_cast<double>(t) * std::pow(c_.rope_theta, -2.0 * static_cast<double>(j) / static_cast<double>(d));
      const T a = v[at + j], b = v[at + j + half];
      v[at + j] = rounded(a * std::cos(angle) - b * std::sin(angle));
      v[at + j + half] = rounded(b * std::cos(angle) + a * std::sin(angle));
    }
  }

  Rows attend(const Weights& w, std::int64_t l, const std::string& n, const Rows& z) const {
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
    note(&Trace::q, l, q);
    note(&Trace::k, l, k);
    for (std::size_t t = 0; t < z.size(); ++t) {
      Row o(heads * d);
      for (std::size_t h = 0; h < heads; ++h) {
        Row p(t + 1);
        T top = -1e300, sum = 0;
        for (std::size_t s = 0; s <= t; ++s) {
          p[s] = dot(&q[t][h * d], &k[s][h / group * d], d) / sqrt(static_cast<double>(d));
          top = max(top, p[s]);
        }
        for (T& e : p) sum += e = exp(e - top);
        for (T& e : p) e = rounded(e / sum);
        for (std::size_t s = 0; s <= t; ++s)
          for (std::size_t j = 0; j < d; ++j) o[h * d + j] += p[s] * v[s][h / group * d + j];
      }
      for (T& e : o) e = rounded(e);
      out.push_back(product(w.at(n + "self_attn.o_proj.weight"), o));
    }
    return out;
  }

  // Updates x; returns the sum of the auxiliary terms of this block.
  T block(const Weights& w, Rows& x, std::int64_t l, std::size_t& seen) {
    const Site site1 = site(l + 1, 0), site2 = site(l + 1, 1);
    const bool output_norms = method_at(l + 1).place == Place::pre_and_post;
    const std::string n = "model.layers." + std::to_string(l) + ".";
    Rows z;
    for (const Row& r : x) z.push_back(apply(site1, w, n + "input_layernorm", r, 0));
    note(&Trace::z1, l, z);
    const Rows h = attend(w, l, n, z);
    T aux = 0;
    for (std::size_t t = 0; t < x.size(); ++t) {
      const T given = second_statistic(w, n, site1, site2.stat, l, mean_square(x[t]), seen);
      const Row branch = output_norms ? apply(plain_site(), w, n + "attn_out_norm", h[t], 0) : h[t];
      for (std::size_t j = 0; j < x[t].size(); ++j) x[t][j] = rounded(x[t][j] + branch[j]);
      note(&Trace::after_attention, l, {x[t]});
      note(&Trace::given, l, {{given}});
      if (site2.stat == SiteStat::approximate && c_.norm.aux_loss > 0) aux += gap(given, mean_square(x[t]), seen);
      const Row z2 = apply(site2, w, n + "post_attention_layernorm", x[t], given);
      note(&Trace::z2, l, {z2});
      const Row gate = product(w.at(n + "mlp.gate_proj.weight"), z2), up = product(w.at(n + "mlp.up_proj.weight"), z2);
      Row s(gate.size());
      for (std::size_t j = 0; j < s.size(); ++j) s[j] = rounded(gate[j] / (1 + exp(-gate[j])) * up[j]);
      Row down = product(w.at(n + "mlp.down_proj.weight"), s);
      if (output_norms) down = apply(plain_site(), w, n + "mlp_out_norm", down, 0);
      for (std::size_t j = 0; j < x[t].size(); ++j) x[t][j] = rounded(x[t][j] + down[j]);
      ++seen;
    }
    note(&Trace::block_output, l, x);
    return aux;
  }
  void note(std::map<std::int64_t, Rows> Trace::*where, std::int64_t l, const Rows& rows) const {
    if (!trace_) return;
    Rows& all = (trace_->*where)[l];
    all.insert(all.end(), rows.begin(), rows.end());
  }

  // s̃² of layer l (from 0) where the second site is given its statistic, from the block input's mean square.
  T second_statistic(const Weights& w, const std::string& n, const Site& site1, SiteStat stat, std::int64_t l, T ms, std::size_t seen) {
    if (stat != SiteStat::approximate && stat != SiteStat::block_input) return 0;
    if (c_.norm.stop_gradient) ms = held(ms, seen, ms_);
    const auto calibration = c_.norm.calibration.empty() || !in_range(l + 1) ? 1.0 : c_.norm.calibration[static_cast<std::size_t>(l)];
    if (stat == SiteStat::block_input) return calibration * ms;
    const double k = site1.inside * site1.outside * get(frozen_, n + "input_layernorm.lam", 1);
    double constant = c_attn_[static_cast<std::size_t>(l)] * k * k;
    if (method_at(l + 1).gamma_in_constant || c_.norm.gamma_in_constant) constant *= mean_square(frozen_.at(n + "input_layernorm.weight"));
    switch (c_.norm.correction) {
      case Correction::none: return calibration * (ms + constant);
      case Correction::beta: return calibration * (ms + w.at(n + "var_beta")[0] * constant);
      case Correction::eta: return calibration * ms * (1 + w.at(n + "var_eta")[0]);
      case Correction::residual_aware:
        return calibration * (ms * (1 + w.at(n + "var_cross_beta")[0]) + w.at(n + "var_alpha")[0] * constant);
    }
    return 0;
  }
  T gap(const T& given, const T& exact, std::size_t seen) {
    const T g = log(given + 1e-8) - log(held(exact, seen, exact_) + 1e-8);
    return g * g;
  }
  // The first pass (freeze_exact(false)) records, later ones replay: what a stopped gradient means to differences. To a tape it is a
  // constant from the start.
  double held(const T& value, std::size_t seen, std::vector<double>& record) const {
    if (use_exact_) return record[seen];
    record.resize(std::max(record.size(), seen + 1));
    return record[seen] = value_of(value);
  }

  ModelConfig c_;
  std::vector<double> c_attn_;
  NamedValues frozen_;
  bool use_exact_ = false;
  Trace* trace_ = nullptr;
  std::int64_t left_out_ = -1;
  std::vector<double> ms_, exact_;
};

using ReferenceModel = ReferenceModelOf<double>;

}  // namespace bhyt::testing

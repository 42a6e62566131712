// Gradients of whatever is computed with `Var` in place of double, by reverse mode: every operation notes on a tape what it depends on and
// by how much, and the tape is walked back once. A tape may play a bf16 program: then whatever passes through rounded() becomes bf16, and
// so does the gradient that comes back through it. All the rest, sums and the gradients of leaves among it, keeps double's digits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <numbers>
#include <vector>

#include "core/dtype.h"

namespace bhyt::testing {

inline double to_nearest_bf16(double x) { return to_float(to_bf16(static_cast<float>(x))); }

enum class Arithmetic : std::uint8_t { exact, bf16 };

class Tape {
 public:
  Tape() = default;
  Tape(const Tape&) = delete;
  Tape& operator=(const Tape&) = delete;

  // Forgets what it holds but keeps the memory: for a model, taking that anew would cost as much as the arithmetic.
  void begin(Arithmetic arithmetic) {
    arithmetic_ = arithmetic;
    nodes_.clear();
    edges_.clear();
    products_.clear();
  }
  Arithmetic arithmetic() const { return arithmetic_; }
  // The node under way depends on `parent` by `partial`, on a and b by their product; close() ends it and gives its number.
  void depends(std::uint32_t parent, double partial) { edges_.push_back({partial, parent}); }
  void depends_on_product(std::uint32_t a, std::uint32_t b) { products_.push_back({a, b}); }
  std::uint32_t close(double value, bool rounds = false) {
    nodes_.push_back({value, edges_.size(), products_.size(), rounds});
    return static_cast<std::uint32_t>(nodes_.size() - 1);
  }
  // The gradient of one node with respect to all of them.
  std::vector<double> gradients(std::uint32_t of) const {
    std::vector<double> g(nodes_.size());
    g[of] = 1;
    for (std::size_t n = of + std::size_t{1}; n-- > 0;) {
      const Node& node = nodes_[n];
      const Node before = n > 0 ? nodes_[n - 1] : Node{};
      if (node.rounds) g[n] = to_nearest_bf16(g[n]);
      for (std::size_t e = before.edges; e < node.edges; ++e) g[edges_[e].parent] += g[n] * edges_[e].partial;
      for (std::size_t p = before.products; p < node.products; ++p) {
        const auto [a, b] = products_[p];
        g[a] += g[n] * nodes_[b].value;
        g[b] += g[n] * nodes_[a].value;
      }
    }
    return g;
  }

 private:
  struct Edge {
    double partial;
    std::uint32_t parent;
  };
  struct Product {
    std::uint32_t a, b;
  };
  struct Node {
    double value = 0;
    std::size_t edges = 0, products = 0;  // where they end; they begin where those of the node before end
    bool rounds = false;
  };
  Arithmetic arithmetic_ = Arithmetic::exact;
  std::vector<Node> nodes_;
  std::vector<Edge> edges_;
  std::vector<Product> products_;  // half the memory of edges, and nearly all there is
};

// A number that depends on numbers of a tape, or (tape is null) a constant. Its operations are friends inside it, so that no double turns
// into one on its way to std::exp.
struct Var {
  double value = 0;
  Tape* tape = nullptr;
  std::uint32_t node = 0;

  Var() = default;
  Var(double constant) : value(constant) {}
  Var(Tape& on, double leaf) : value(leaf), tape(&on), node(on.close(leaf)) {}

  Var& operator+=(const Var& b) { return *this = *this + b; }
  friend Var operator-(const Var& a) { return made(-a.value, {{a, -1}}); }
  friend Var operator+(const Var& a, const Var& b) { return made(a.value + b.value, {{a, 1}, {b, 1}}); }
  friend Var operator-(const Var& a, const Var& b) { return made(a.value - b.value, {{a, 1}, {b, -1}}); }
  friend Var operator*(const Var& a, const Var& b) { return made(a.value * b.value, {{a, b.value}, {b, a.value}}); }
  friend Var operator/(const Var& a, const Var& b) {
    const double q = a.value / b.value;
    return made(q, {{a, 1 / b.value}, {b, -q / b.value}});
  }
  friend bool operator<(const Var& a, const Var& b) { return a.value < b.value; }
  friend Var fabs(const Var& a) { return made(std::fabs(a.value), {{a, a.value < 0 ? -1.0 : 1.0}}); }
  friend Var sqrt(const Var& a) { return made(std::sqrt(a.value), {{a, 0.5 / std::sqrt(a.value)}}); }
  friend Var exp(const Var& a) { return made(std::exp(a.value), {{a, std::exp(a.value)}}); }
  friend Var log(const Var& a) { return made(std::log(a.value), {{a, 1 / a.value}}); }
  friend Var tanh(const Var& a) { return made(std::tanh(a.value), {{a, 1 - std::tanh(a.value) * std::tanh(a.value)}}); }
  friend Var erf(const Var& a) { return made(std::erf(a.value), {{a, 2 * std::numbers::inv_sqrtpi * std::exp(-a.value * a.value)}}); }
  friend double value_of(const Var& a) { return a.value; }

  // One node for a whole sum, none for its terms: a model is made of little else. All of a and b are on one tape.
  friend Var dot(const Var* a, const Var* b, std::size_t n) {
    Var out;
    out.tape = a->tape;
    for (std::size_t i = 0; i < n; ++i) {
      out.value += a[i].value * b[i].value;
      out.tape->depends_on_product(a[i].node, b[i].node);
    }
    return out.closed();
  }
  friend Var rounded(const Var& a) {
    if (!a.tape || a.tape->arithmetic() == Arithmetic::exact) return a;
    Var out(to_nearest_bf16(a.value));
    out.depend(a, 1);
    return out.closed(true);
  }

 private:
  struct Term {
    const Var& parent;
    double partial;
  };
  static Var made(double value, std::initializer_list<Term> terms) {
    Var out(value);
    for (const Term& t : terms) out.depend(t.parent, t.partial);
    return out.closed();
  }
  void depend(const Var& parent, double partial) {
    if (!parent.tape) return;
    tape = parent.tape;
    tape->depends(parent.node, partial);
  }
  Var& closed(bool rounds = false) {
    if (tape) node = tape->close(value, rounds);
    return *this;
  }
};

}  // namespace bhyt::testing

// The model of a measurement, and its matrix products alone.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "bench/measure.h"
#include "model/model.h"

namespace bhyt::bench {

inline std::string model_name(const Settings& s) {
  return s.model.preset.empty() ? fmt::format("d{}×{}", s.model.d, s.model.layers) : s.model.preset;
}

inline std::unique_ptr<Model> make_model(const Settings& s) {
  auto model = std::make_unique<Model>(s.ctx, s.model, s.dtype);
  initialize(model->parameters());
  model->refresh_constants();
  return model;
}

// The matrix products of a pass and nothing else, in its order and sizes. The head's rows are cut as a large vocabulary forces any
// implementation to.
class Products {
 public:
  Products(const Settings& s, std::int64_t tokens, std::int64_t head_tokens, bool backward) : backward_(backward) {
    for (Product p : products(s.model, tokens)) {
      pieces_.push_back(1);
      if (p.name == "head") {
        const std::int64_t fits = std::max<std::int64_t>(1, (std::int64_t{256} << 20) / (p.n * 4));
        pieces_.back() = (head_tokens + fits - 1) / fits;
        p.m = (head_tokens + pieces_.back() - 1) / pieces_.back();
      }
      list_.push_back(p);
      operands_.push_back(std::make_unique<Operands>(s.ctx, p, s.dtype, backward));
    }
  }
  // by_row: a row's bits do not depend on the others.
  void run(bool by_row = false) const {
    for (std::int64_t l = 0; l < list_[0].count; ++l)
      for (std::size_t i = 0; i + 1 < list_.size(); ++i) operands_[i]->forward(by_row);
    for (std::int64_t i = 0; i < pieces_.back(); ++i) {
      operands_.back()->forward(by_row);
      if (backward_) back(*operands_.back());
    }
    if (!backward_) return;
    for (std::int64_t l = 0; l < list_[0].count; ++l)
      for (std::size_t i = list_.size() - 1; i-- > 0;) back(*operands_[i]);
  }

 private:
  static void back(const Operands& o) {
    o.backward_x();
    o.backward_w();
  }
  bool backward_;
  std::vector<Product> list_;
  std::vector<std::int64_t> pieces_;
  std::vector<std::unique_ptr<Operands>> operands_;
};

}  // namespace bhyt::bench

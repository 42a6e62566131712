// The table of optimizers.
#include "core/check.h"
#include "train/optimizer.h"

namespace bhyt::train {

namespace {

class AdamWOptimizer : public Optimizer {
 public:
  AdamWOptimizer(const TrainSection& settings, const Parameters& parameters, Shard shard)
      : Optimizer(parameters, std::move(shard)), settings_(settings), m_(add_state("m")), v_(add_state("v")) {}

  void step(const Update& u) override {
    adamw(context(), masters().low_bits(), u.gradients, m_, v_, spans(),
          {.lr = u.lr,
           .beta1 = settings_.betas[0],
           .beta2 = settings_.betas[1],
           .eps = settings_.adam_eps,
           .weight_decay = settings_.weight_decay,
           .step = u.number,
           .grad_norm = u.grad_norm,
           .loss = u.loss,
           .clip = settings_.clip});
  }

 private:
  TrainSection settings_;
  Tensor m_, v_;
};

template <class O>
std::unique_ptr<Optimizer> make(const TrainSection& settings, const Parameters& parameters, Shard shard) {
  return std::make_unique<O>(settings, parameters, std::move(shard));
}

struct Row {
  const char* name;
  std::int64_t state;  // arenas in fp32
  std::unique_ptr<Optimizer> (*make)(const TrainSection& settings, const Parameters& parameters, Shard shard);
};

constexpr Row kOptimizers[] = {
    {"adamw", 2, make<AdamWOptimizer>},
};

const Row& find(const std::string& name) {
  for (const Row& row : kOptimizers)
    if (name == row.name) return row;
  throw UsageError(fmt::format("train.optimizer must be one of {}, got \"{}\"", fmt::join(optimizer_names(), ", "), name));
}

}  // namespace

std::vector<std::string> optimizer_names() {
  std::vector<std::string> names;
  for (const Row& row : kOptimizers) names.emplace_back(row.name);
  return names;
}

std::unique_ptr<Optimizer> make_optimizer(const TrainSection& settings, const Parameters& parameters, std::int64_t rank,
                                          std::int64_t ranks) {
  return find(settings.optimizer).make(settings, parameters, Shard(parameters, rank, ranks));
}

std::size_t planned_optimizer_bytes(const TrainSection& settings, std::int64_t arena, DType type) {
  const std::int64_t low_bits = type == DType::bf16 ? 1 : 0;
  return static_cast<std::size_t>(arena) * static_cast<std::size_t>(find(settings.optimizer).state * 4 + low_bits * 2);
}

}  // namespace bhyt::train

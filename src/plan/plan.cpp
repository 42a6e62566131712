#include "plan/plan.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "io/format.h"
#include "model/shard.h"
#include "ops/cross_entropy/cross_entropy.h"

namespace bhyt::plan {

namespace {

using train::RunConfig;

constexpr Measured kMeasured[] = {{"llama-374m", 16, 1024, 220039}, {"llama-1b", 16, 1024, 75650}, {"llama-3b", 16, 2048, 28757}};
constexpr const char* kMeasuredOn = "h200";

constexpr struct {
  const char* name;
  Recompute kind;
} kRecomputes[] = {{"none", Recompute::none}, {"norm", Recompute::norm}, {"swiglu", Recompute::swiglu}, {"block", Recompute::block}};

double number(std::int64_t n) { return static_cast<double>(n); }

double update_seconds(std::int64_t elements, const Gpu& gpu) { return number(elements) * kUpdateBytes / (kUpdateShare * gpu.hbm); }

Parameters layout_of(const RunConfig& c) { return Parameters::layout(c.model.config, *c.run.dtype, c.lora.config, c.ranks.size); }

ModelConfig preset_config(const char* preset) {
  return train::read_run_config(train::config_tree("", {fmt::format("model.preset={}", preset)})).model.config;
}

// The share of the peak that forward and backward reached in a measured step.
double share_of(const Measured& m, const ModelConfig& model) {
  const Gpu& gpu = find_gpu(kMeasuredOn);
  const double tokens = number(m.batch * m.seq);
  const double update = update_seconds(Parameters::planned(model, DType::bf16).arena, gpu);
  return tokens * flops_per_token(model, m.seq) / (tokens / m.tok_s - update) / gpu.flops;
}

void take_measured(Plan& plan) {
  double nearest = INFINITY;
  for (const Measured& m : kMeasured) {
    const ModelConfig model = preset_config(m.preset);
    const double away = std::fabs(std::log(number(Parameters::layout(model, DType::bf16).count()) / number(plan.parameters)));
    if (away >= nearest) continue;
    nearest = away;
    plan.measured = m;
    plan.share = share_of(m, model);
  }
}

// Seconds of a micro-batch's passes, for the timeline.
void set_passes(Work& work, const RunConfig& c, double flops_per_second) {
  const TrainingFlops flops = training_flops(c.model.config, c.data.seq_len, c.lora.config);
  const double tokens = number(train::rows_of_a_rank(c) * c.data.seq_len) / number(work.pieces);  // the last one may have fewer
  const double block = tokens * flops.token / number(work.layers) / flops_per_second;
  const double forward = c.lora.config.active() ? 1.0 / 2 : 1.0 / 3;  // of frozen weights there is no gradient
  work.forward = forward * block;
  work.backward = (1 - forward) * block;
  work.head = tokens * flops.scored / flops_per_second;
  if (c.train.recompute == Recompute::block)
    work.backward += work.forward;
  else if (c.train.recompute != Recompute::none)
    work.backward += kRecomputeNorms * block;
}

Work work_of(const Plan& plan, const RunConfig& c, const Row& row) {
  const Parameters layout = layout_of(c);
  Work work{.layers = c.model.config.layers, .pieces = row.pieces, .zero = row.zero};
  const double gradient = c.parallel.reduce == parallel::Reduce::bf16 ? 2 : 4;
  for (const Parameters::Section& s : layout.sections())
    work.sections.push_back(
        {.layer = s.layer, .gradients = gradient * number(s.size), .weights = static_cast<double>(size_of(*c.run.dtype)) * number(s.size)});
  work.vectors = sizeof(float) * number(layout.vectors_size());
  set_passes(work, c, plan.share * plan.cluster.gpu.flops);
  work.optimizer = update_seconds(Shard(layout, 0, row.zero > 0 ? c.ranks.size : 1).size(), plan.cluster.gpu);
  return work;
}

// Rows of a micro-batch that fit, at most those of a rank; 0: none.
std::int64_t largest_that_fits(const RunConfig& c, double room) {
  std::int64_t fits = 0, beyond = train::rows_of_a_rank(c) + 1;
  while (beyond - fits > 1) {
    const std::int64_t middle = fits + (beyond - fits) / 2;
    (train::plan_memory(c, middle).device() <= room ? fits : beyond) = middle;
  }
  return fits;
}

Row make_row(const Plan& plan, std::int64_t zero, Recompute recompute) {
  RunConfig c = plan.config;
  c.parallel.zero = zero;
  c.train.recompute = recompute;
  Row row{.zero = zero, .recompute = recompute, .largest = largest_that_fits(c, plan.room)};
  const std::int64_t rows = train::rows_of_a_rank(c), most = std::max<std::int64_t>(row.largest, 1);
  row.micro_batch = c.train.micro_batch > 0 ? std::min(c.train.micro_batch, rows) : most;
  row.pieces = (rows + row.micro_batch - 1) / row.micro_batch;
  if (c.train.micro_batch == 0) row.micro_batch = (rows + row.pieces - 1) / row.pieces;
  row.memory = train::plan_memory(c, row.micro_batch);
  const ModelConfig& model = c.model.config;
  row.workspace = std::min(row.memory.activations, static_cast<double>(cross_entropy_workspace(row.micro_batch * c.data.seq_len, model.d,
                                                                                               model.vocab, *c.run.dtype, c.device)));
  row.missing = std::max(row.memory.device() - plan.room, 0.0);
  row.time = time_step(work_of(plan, c, row), plan.ring);
  row.tok_s = plan.tokens() / row.time.step;
  return row;
}

void choose(Plan& plan) {
  const auto quickest = [](const Row& r) { return r.fits() ? r.time.step : INFINITY; };
  const auto least = std::ranges::min_element(plan.rows, {}, [](const Row& r) { return r.missing; });
  check_usage(least->fits(),
              "this run does not fit on {} × {}: what takes least, parallel.zero={} train.recompute={} with {} rows a micro-batch, "
              "needs {} on each, {} more than the {} that are there for it; more GPUs, a smaller model or a smaller train.micro_batch "
              "need less",
              plan.cluster.ranks(), plan.cluster.gpu.name, least->zero, name_of(least->recompute), least->micro_batch,
              human_bytes(least->memory.device()), human_bytes(least->missing), human_bytes(plan.room));
  const double best = quickest(*std::ranges::min_element(plan.rows, {}, quickest));
  double memory = INFINITY;
  for (std::size_t i = 0; i < plan.rows.size(); ++i) {
    if (quickest(plan.rows[i]) > 1.001 * best || plan.rows[i].memory.device() >= memory) continue;
    plan.best = i;
    memory = plan.rows[i].memory.device();
  }
}

}  // namespace

const char* name_of(Recompute recompute) {
  return std::ranges::find(kRecomputes, recompute, [](const auto& r) { return r.kind; })->name;
}

std::string Plan::limit(const Row& row) const {
  if (row.time.communication <= row.time.compute) return "compute";
  return ring.over_network ? "network" : cluster.gpu.link_name;
}

Plan make_plan(RunConfig config, const Cluster& cluster) {
  config.device = Device::cuda(0);
  config.run.dtype = config.run.dtype.value_or(DType::bf16);
  config.ranks = {.rank = 0, .size = cluster.ranks(), .on_host = cluster.per_node};
  check_usage(*config.run.dtype == DType::bf16, "a plan is for bf16, in which the rates were measured, got dtype={}",
              bhyt::name_of(*config.run.dtype));
  check_usage(config.train.batch >= cluster.ranks(), "train.batch is {}: {} GPUs need a row each", config.train.batch, cluster.ranks());
  Plan plan{.config = std::move(config), .cluster = cluster, .ring = ring_of(cluster)};
  plan.parameters = layout_of(plan.config).count();
  plan.room = cluster.gpu.memory - kReserve;
  take_measured(plan);
  for (std::int64_t zero = 0; zero <= (cluster.ranks() > 1 ? 2 : 0); ++zero)
    for (const auto& r : kRecomputes) plan.rows.push_back(make_row(plan, zero, r.kind));
  choose(plan);
  return plan;
}

}  // namespace bhyt::plan

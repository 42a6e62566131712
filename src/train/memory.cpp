#include "train/memory.h"

#include "core/check.h"
#include "core/log.h"
#include "io/format.h"
#include "machine/machine.h"
#include "model/train_pass.h"
#include "train/batches.h"
#include "train/calibrate.h"
#include "train/data_parallel.h"
#include "train/optimizer.h"

namespace bhyt::train {

namespace {

constexpr double kWaiting = 4;  // training batches on the host: in the making, two that are ready, and the one that is being copied

// Ranks that take their memory from the same device.
double sharing(const RunConfig& c) { return c.device.is_cuda() && !c.parallel.share_gpu ? 1 : static_cast<double>(c.ranks.on_host); }

double activation_bytes(const RunConfig& c, std::int64_t rows) {
  const TrainPass::Shape shape{.batch = rows, .seq = c.data.seq_len, .recompute = c.train.recompute, .lists = c.data.chat.has_value()};
  return static_cast<double>(TrainPass::planned_bytes(c.model.config, *c.run.dtype, c.device, shape, c.lora.config));
}

double tokens_in(const RunConfig& c, std::int64_t rows) { return static_cast<double>(rows) * static_cast<double>(c.data.seq_len); }
double flops_in(const RunConfig& c, std::int64_t rows) {
  return tokens_in(c, rows) * training_flops(c.model.config, c.data.seq_len, c.lora.config).sum();
}

// Whether a CPU is done with a micro-batch in some seconds: a run is only heard from, and stopped, between them.
bool quick_enough(const RunConfig& c, std::int64_t rows) {
  constexpr double kMostTokens = 1 << 16, kMostFlops = 1e12;
  return c.device.is_cuda() || (tokens_in(c, rows) <= kMostTokens && flops_in(c, rows) <= kMostFlops);
}

// As many sequences as have their activations in so much memory, in pieces of equal size.
std::int64_t auto_micro_batch(const RunConfig& c, double available) {
  const std::int64_t batch = rows_of_a_rank(c);
  const auto rows = [&](std::int64_t pieces) { return (batch + pieces - 1) / pieces; };
  std::int64_t least = 1, most = batch;  // pieces; the most, rows of one, is taken whether it fits or not
  while (least < most) {
    const std::int64_t middle = least + (most - least) / 2;
    if (quick_enough(c, rows(middle)) && activation_bytes(c, rows(middle)) <= available)
      most = middle;
    else
      least = middle + 1;
  }
  return rows(least);
}

// Half the machine's memory (nine tenths of a GPU's) is for the run. From the total, not from what is free now: the same machine gives the
// same bits, unless others leave too little of it.
void settle_micro_batch(RunConfig& c, const MemoryPlan& least, const FreeMemory& free) {
  const double usual = static_cast<double>(total_memory(c.device)) * (c.device.is_cuda() ? 0.9 : 0.5) / sharing(c) - least.fixed();
  c.train.micro_batch = auto_micro_batch(c, usual);
  const double left = free.device - least.device() - (c.device.is_cuda() ? 0 : least.host);
  if (free.device <= 0 || activation_bytes(c, c.train.micro_batch) <= left) return;
  c.train.micro_batch = auto_micro_batch(c, left);
  log::info("train.micro_batch: {}, for others use much of the memory: {} are free", c.train.micro_batch, human_bytes(free.device));
}

}  // namespace

MemoryPlan plan_memory(const RunConfig& c, std::int64_t micro_batch) {
  const Parameters layout = Parameters::layout(c.model.config, *c.run.dtype, c.lora.config, c.ranks.size);
  const Parameters::Sizes sizes = Parameters::planned(c.model.config, *c.run.dtype, c.lora.config, c.ranks.size);
  const std::int64_t shard = Shard(layout, 0, zero_of(c) > 0 ? c.ranks.size : 1).size();
  const double batch =
      Uploader::planned_bytes(
          {.batch = rows_of_a_rank(c), .seq = c.data.seq_len, .documents = tells_documents(c.data), .lists = c.data.chat.has_value()}) /
      2;
  const double sides = c.data.valid.empty() ? 1 : 2;
  MemoryPlan plan;
  plan.weights = static_cast<double>(sizes.value_bytes);
  plan.gradients = DataParallel::planned_bytes(c);
  plan.optimizer = static_cast<double>(planned_optimizer_bytes(c.train, shard, *c.run.dtype));
  plan.batches = 2 * sides * batch;
  plan.host = kWaiting * batch + (c.device.is_cuda() ? plan.batches : 0);
  plan.calibration = planned_calibration_bytes(c);
  if (micro_batch > 0) plan.activations = activation_bytes(c, micro_batch);
  return plan;
}

FreeMemory free_memory_for(const RunConfig& c) {
  const auto ranks = static_cast<double>(c.ranks.on_host);
  return {.device = static_cast<double>(free_memory(c.device)) / sharing(c),
          .host = static_cast<double>(free_memory(Device::cpu())) / ranks};
}

void check_memory(const RunConfig& c, const MemoryPlan& plan, const FreeMemory& free) {
  const auto refuse = [&](const std::string& what, const std::string& place, double has) {
    const std::string help =
        plan.fixed() > free.device && free.device > 0
            ? "the model is too large for it"
            : fmt::format(
                  "lower train.batch or train.micro_batch (now {} and {}); train.recompute=block and a shorter data.seq_len take less, too",
                  c.train.batch, c.train.micro_batch ? std::to_string(c.train.micro_batch) : "auto");
    throw UsageError(fmt::format("this run needs {}, {} has {} free; {}", what, place, human_bytes(has), help));
  };
  std::string parts = fmt::format("weights {}, gradients {}, optimizer {}, activations {}", human_bytes(plan.weights),
                                  human_bytes(plan.gradients), human_bytes(plan.optimizer), human_bytes(plan.activations));
  if (plan.calibration > 0) parts += fmt::format(", norm.from=calibrate {}", human_bytes(plan.calibration));
  const bool gpu = c.device.is_cuda();
  const double device = plan.device() + (gpu ? 0 : plan.host);
  if (free.device > 0 && device > free.device)
    refuse(fmt::format("{} ({}, batches {})", human_bytes(device), parts,
                       human_bytes(device - plan.fixed() - plan.activations - plan.calibration)),
           gpu ? name_of(c.device) : "this machine", free.device);
  if (gpu && free.host > 0 && plan.host > free.host)
    refuse(fmt::format("{} for the batches on their way to the GPU", human_bytes(plan.host)), "this machine", free.host);
}

void settle_memory(RunConfig& c, const FreeMemory& free) {
  c.train.micro_batch = std::min(c.train.micro_batch, rows_of_a_rank(c));
  // First without activations: a batch beyond all bounds is not worth a plan of them.
  const MemoryPlan least = plan_memory(c, 0);
  check_memory(c, least, free);
  if (c.train.micro_batch == 0) settle_micro_batch(c, least, free);
  check_memory(c, plan_memory(c, c.train.micro_batch), free);
}

std::string slow_micro_batch(const RunConfig& c, double peak) {
  const std::int64_t rows = c.train.micro_batch;
  if (quick_enough(c, rows)) return "";
  return fmt::format(
      "one micro-batch of {} × {} tokens takes this machine at least {:.1f} s; the run tells how far it is, and stops "
      "when asked, only between them{}",
      grouped(rows), grouped(c.data.seq_len), flops_in(c, rows) / peak, rows > 1 ? "; lower train.micro_batch" : "");
}

}  // namespace bhyt::train

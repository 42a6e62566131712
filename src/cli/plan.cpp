// bhyt plan: memory, communication and speed of a run on GPUs that are not here.
#include "plan/plan.h"

#include <fmt/format.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/training.h"
#include "core/check.h"
#include "core/log.h"
#include "io/format.h"
#include "train/data.h"

namespace bhyt::cli {

namespace {

using plan::Plan;
using plan::Row;
using PlanJson = nlohmann::ordered_json;

void print_plan_help() {
  fmt::print(
      "usage: bhyt plan [CONFIG.yaml] [key=value ...] --gpus N --gpu NAME [--nodes M --network RATE] [--json]\n\n"
      "Says what a pretraining run would take on GPUs that are not here: memory of a rank by kind, for every parallel.zero and\n"
      "train.recompute, the largest micro-batch, what is sent, the time of a step and what limits it. docs/scaling.md has the model.\n\n"
      "  --gpus N        GPUs of a node, each with a rank\n"
      "  --gpu NAME      h200, h100-80g, a100-80g, a100-40g, b200 or l40s\n"
      "  --nodes M       nodes (1)\n"
      "  --network RATE  bits a second of a node, over all its adapters, in one direction: 400G, 3.2T\n"
      "  --json          print the plan as one JSON object on stdout\n\n"
      "Keys are those of bhyt pretrain (bhyt help pretrain). train.batch is the batch of all GPUs together. Data need not be there where\n"
      "model.preset or model.vocab says how large the vocabulary is.\n");
}

int whole_number(const std::string& text, const char* flag) {
  int n = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, n);
  check_usage(error == std::errc() && stop == end && n >= 1 && n <= 65536, "{}: expected a whole number from 1 to 65536, got {}", flag,
              text.empty() ? "nothing" : text);
  return n;
}

struct PlanFlags {
  std::string gpus, gpu, nodes = "1", network;

  plan::Cluster cluster() const {
    check_usage(!gpus.empty() && !gpu.empty(), "expected --gpus N and --gpu NAME; see bhyt help plan");
    plan::Cluster c{.gpu = plan::find_gpu(gpu), .per_node = whole_number(gpus, "--gpus"), .nodes = whole_number(nodes, "--nodes")};
    check_usage(c.nodes == 1 || !network.empty(), "--nodes {} needs --network, the bits a second of a node, such as 400G", c.nodes);
    if (!network.empty()) c.network = plan::parse_network(network);
    return c;
  }
};

// The vocabulary comes from the data where it can be read, else from the model's keys.
void settle_vocabulary(train::RunConfig& c) {
  if (!c.data.train.empty() && !c.model.vocab_given) try {
      train::RunConfig chosen = c;
      chosen.device = Device::cpu();
      (void)train::choose_data(chosen);
      c.model.config.vocab = chosen.model.config.vocab;
    } catch (const Error& e) {
      if (c.model.config.vocab <= 0) throw;
      log::warning("{}; planning with a vocabulary of {}", e.what(), grouped(c.model.config.vocab));
    }
  check_usage(c.model.config.vocab > 0, "how large the vocabulary is depends on data: give data.train, or model.vocab");
}

std::string describe(const plan::Cluster& c) {
  if (c.nodes == 1) return fmt::format("{} × {}", c.ranks(), c.gpu.title);
  return fmt::format("{} × {} ({} nodes of {}, {:.0f} Gbit/s each)", c.ranks(), c.gpu.title, c.nodes, c.per_node, c.network * 8e-9);
}

std::string name_of_model(const train::RunConfig& c) {
  const ModelConfig& m = c.model.config;
  return m.preset.empty() ? fmt::format("d {}, {} layers", m.d, m.layers) : m.preset;
}

void print_row(const Plan& p, const Row& r) {
  const auto gib = [](double bytes) { return fmt::format("{:.2f}", bytes / (1 << 30)); };
  const train::MemoryPlan& m = r.memory;
  fmt::print("{:>4}  {:<9} {:>5} {:>6} | {:>7} {:>9} {:>9} {:>11} {:>9} {:>7} {:>7} | ", r.zero, plan::name_of(r.recompute), r.micro_batch,
             r.pieces, gib(m.weights), gib(m.gradients), gib(m.optimizer), gib(m.activations - r.workspace), gib(r.workspace),
             gib(m.batches + m.calibration), gib(m.device()));
  if (!r.fits())
    fmt::print("does not fit: {} too much\n", human_bytes(r.missing));
  else
    fmt::print("{:>7.2f} {:>8.1f} {:>6.1f} {:>9} {:>7}{}\n", r.time.sent * 1e-9, 1e3 * r.time.step, 100 * r.time.exposed() / r.time.step,
               grouped(static_cast<std::int64_t>(r.tok_s)), p.limit(r), &r == &p.rows[p.best] ? "  *" : "");
}

// What has to be computed again for all rows of a GPU to go through at once.
void print_whole(const Plan& p) {
  const std::int64_t rows = train::rows_of_a_rank(p.config);
  for (std::int64_t zero = 0; zero <= p.rows.back().zero; ++zero) {
    const Row* first = nullptr;
    for (const Row& r : p.rows)
      if (!first && r.zero == zero && r.largest >= rows) first = &r;
    fmt::print("zero {}: the {} rows of a GPU at once {}\n", zero, rows,
               first ? fmt::format("fit with train.recompute={}", plan::name_of(first->recompute)) : "do not fit");
  }
}

void print_assumptions(const Plan& p) {
  const plan::Cluster& c = p.cluster;
  fmt::print("\nassumed\n");
  fmt::print("  passes at {:.1f} % of {:.0f} TFLOP/s, as {} at {}×{} on one H200 ({} tok/s){}\n", 100 * p.share, c.gpu.flops * 1e-12,
             p.measured.preset, p.measured.batch, p.measured.seq, grouped(static_cast<std::int64_t>(p.measured.tok_s)),
             c.gpu.name == std::string("h200") ? "" : "; not measured on this GPU");
  const std::int64_t tokens = p.rows[p.best].micro_batch * p.config.data.seq_len;
  if (tokens < plan::kUsualTokens)
    fmt::print("  a micro-batch has {} tokens: passes of fewer than {} are slower than that\n", grouped(tokens),
               grouped(plan::kUsualTokens));
  fmt::print("  block computed again: one forward more; norms and SwiGLU: {:.1f} % more; the update at {:.0f} % of {:.2f} TB/s\n",
             100 * plan::kRecomputeNorms, 100 * plan::kUpdateShare, c.gpu.hbm * 1e-12);
  if (c.ranks() > 1)
    fmt::print(
        "  collectives as rings at {:.0f} % of {}, {:.0f} GB/s, {:.2f} ms once round; beside the passes, for which they cost nothing\n",
        100 * plan::kLinkShare, p.ring.over_network ? "the network" : c.gpu.link_name, p.ring.rate / plan::kLinkShare * 1e-9,
        1e3 * p.ring.latency);
  fmt::print("  {} of a GPU for the run, {} for CUDA, libraries and NCCL\n", human_bytes(p.room), human_bytes(plan::kReserve));
}

void print_plan(const Plan& p) {
  const train::RunConfig& c = p.config;
  const Row& best = p.rows[p.best];
  fmt::print("{}: {}, {} weights, {}, {}\n", describe(p.cluster), name_of_model(c), grouped(p.parameters), c.model.config.norm.method,
             name_of(*c.run.dtype));
  fmt::print("{} × {} tokens a step, {} rows a GPU\n\n", grouped(c.train.batch), grouped(c.data.seq_len), train::rows_of_a_rank(c));
  fmt::print("{:28} | {:65} | {}\n", "", "memory of a GPU, GiB", "a step");
  fmt::print("{:>4}  {:<9} {:>5} {:>6} | {:>7} {:>9} {:>9} {:>11} {:>9} {:>7} {:>7} | {:>7} {:>8} {:>6} {:>9} {:>7}\n", "zero", "recompute",
             "micro", "pieces", "weights", "gradients", "optimizer", "activations", "workspace", "batches", "sum", "sent GB", "ms",
             "idle %", "tok/s", "limit");
  for (const Row& r : p.rows) print_row(p, r);
  fmt::print("\n");
  print_whole(p);
  fmt::print("* quickest: parallel.zero={} train.recompute={} train.micro_batch={}: {} tok/s, {} of each GPU\n", best.zero,
             plan::name_of(best.recompute), best.micro_batch, grouped(static_cast<std::int64_t>(best.tok_s)),
             human_bytes(best.memory.device()));
  print_assumptions(p);
}

PlanJson row_json(const Plan& p, const Row& r) {
  const train::MemoryPlan& m = r.memory;
  PlanJson j{{"zero", r.zero},
             {"recompute", plan::name_of(r.recompute)},
             {"fits", r.fits()},
             {"largest_micro_batch", r.largest},
             {"micro_batch", r.micro_batch},
             {"pieces", r.pieces}};
  j["memory"] = {
      {"weights", m.weights},     {"gradients", m.gradients}, {"optimizer", m.optimizer},     {"activations", m.activations - r.workspace},
      {"workspace", r.workspace}, {"batches", m.batches},     {"calibration", m.calibration}, {"sum", m.device()}};
  if (!r.fits()) {
    j["missing"] = r.missing;
    return j;
  }
  j["sent_bytes"] = r.time.sent;
  j["step_ms"] = 1e3 * r.time.step;
  j["compute_ms"] = 1e3 * r.time.compute;
  j["communication_ms"] = 1e3 * r.time.communication;
  j["exposed_ms"] = 1e3 * r.time.exposed();
  j["tok_s"] = r.tok_s;
  j["limit"] = p.limit(r);
  return j;
}

PlanJson plan_json(const Plan& p) {
  const plan::Cluster& c = p.cluster;
  PlanJson j{{"gpu", c.gpu.name}, {"gpus", c.ranks()}, {"nodes", c.nodes}, {"parameters", p.parameters}};
  j["batch"] = p.config.train.batch;
  j["seq_len"] = p.config.data.seq_len;
  j["room"] = p.room;
  j["assumed"] = {{"share_of_peak", p.share},
                  {"measured_with", p.measured.preset},
                  {"link", p.ring.over_network ? "network" : c.gpu.link_name},
                  {"link_bytes_s", p.ring.rate},
                  {"latency_s", p.ring.latency}};
  for (const Row& r : p.rows) j["rows"].push_back(row_json(p, r));
  j["best"] = p.best;
  return j;
}

}  // namespace

int cmd_plan(const Args& args) {
  PlanFlags f;
  const TrainingWords w = parse_training(
      args, "plan", train::Work::pretraining,
      {{"--gpus", nullptr, &f.gpus}, {"--gpu", nullptr, &f.gpu}, {"--nodes", nullptr, &f.nodes}, {"--network", nullptr, &f.network}});
  if (w.help) return print_plan_help(), 0;
  log::set_quiet(w.quiet);
  const plan::Cluster cluster = f.cluster();
  train::RunConfig config = train::read_run_config(train::config_tree(w.config, w.overrides), Verify::no);
  settle_vocabulary(config);
  const Plan p = plan::make_plan(std::move(config), cluster);
  if (w.json)
    fmt::print("{}\n", plan_json(p).dump());
  else
    print_plan(p);
  return 0;
}

}  // namespace bhyt::cli

#include "train/data_parallel.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "parallel/launch.h"
#include "train/agreement.h"

namespace bhyt::train {

namespace {

// Layers of blocks whose gradients are under way at a time with zero 2: one is being made while another is added up.
constexpr std::int64_t kSlots = 2;

// On a timeline: time in which nothing is computed for want of a collective, if it is more than looking costs.
constexpr const char* kWait = "wait";
constexpr double kNoWait = 2e-5;

bool in_block(const Parameters::Section& s, const ModelConfig& c) { return s.layer >= 1 && s.layer <= c.layers; }

// Where the sections' gradients lie with zero 2, in elements; returns their sum. Blocks take turns; the embedding and the head stay.
std::int64_t lay_slots(const std::vector<Parameters::Section>& sections, const ModelConfig& c, std::vector<std::int64_t>& at) {
  std::int64_t largest = 0;
  for (const auto& s : sections)
    if (in_block(s, c)) largest = std::max(largest, s.size);
  std::int64_t end = kSlots * largest;
  for (const auto& s : sections) {
    at.push_back(in_block(s, c) ? s.layer % kSlots * largest : end);
    if (!in_block(s, c)) end += s.size;
  }
  return end;
}

std::unique_ptr<parallel::Collectives> open_collectives(Context& ctx, const RunConfig& c, parallel::Group* group) {
  if (!works_as_ranks(c, group)) return nullptr;
  const parallel::CollectiveOptions options{.bucket = static_cast<std::size_t>(c.parallel.bucket * 1e6), .reduce = c.parallel.reduce};
  group->set_timeout(c.parallel.timeout);
  if (ctx.device().is_cuda() && !c.parallel.share_gpu) return parallel::nccl_collectives(ctx, *group, options);
  return parallel::host_collectives(ctx, *group, options);
}

}  // namespace

bool works_as_ranks(const RunConfig& c, const parallel::Group* group) { return group && (group->size() > 1 || c.parallel.zero >= 0); }

std::int64_t zero_of(const RunConfig& c) {
  if (c.ranks.size == 1 && !c.ranks.launched) return 0;  // no collectives
  return c.parallel.zero >= 0 ? c.parallel.zero : c.ranks.size > 1 ? 2 : 0;
}

DataParallel::DataParallel(Context& ctx, const Model& model, const RunConfig& config, parallel::Group* group)
    : ctx_(ctx),
      model_(model),
      group_(group),
      rank_(config.ranks.rank),
      ranks_(config.ranks.size),
      zero_(zero_of(config)),
      shard_(model.parameters(), shard_rank(), shard_ranks()),
      collectives_(open_collectives(ctx, config, group)) {
  if (!several()) zero_ = 0;
  lay_gradients();
}

double DataParallel::planned_bytes(const RunConfig& c) {
  const Parameters layout = Parameters::layout(c.model.config, *c.run.dtype, c.lora.config, c.ranks.size);
  const std::int64_t zero = zero_of(c);
  if (zero == 0) return static_cast<double>(layout.arena_size()) * sizeof(float);
  std::vector<std::int64_t> at;
  const std::int64_t matrices = zero == 1 ? layout.arena_size() - layout.vectors_size() : lay_slots(layout.sections(), c.model.config, at);
  return static_cast<double>(matrices + Shard(layout, 0, c.ranks.size).size()) * sizeof(float);
}

void DataParallel::lay_gradients() {
  const Parameters& parameters = model_.parameters();
  const auto& sections = parameters.sections();
  reduced_.assign(sections.size(), 0);
  gathered_.assign(sections.size(), 0);
  squares_ = OwnedTensor(ctx_, DType::f64, {1});
  if (zero_ == 0) {
    gradients_ = Gradients(ctx_, parameters);
    for (const auto& s : sections) where_.push_back(gradients_.arena.t.as<float>() + s.offset);
    return;
  }
  std::vector<std::int64_t> at;
  std::int64_t size = parameters.arena_size() - parameters.vectors_size();
  if (zero_ == 2)
    size = lay_slots(sections, model_.config(), at);
  else
    for (const auto& s : sections) at.push_back(s.offset - parameters.vectors_size());
  matrices_ = OwnedTensor(ctx_, DType::f32, {std::max<std::int64_t>(size, 1)});
  summed_ = OwnedTensor(ctx_, DType::f32, {shard_.size()});
  zero(ctx_, matrices_);
  zero(ctx_, summed_);
  for (const std::int64_t a : at) where_.push_back(matrices_.t.as<float>() + a);
  gradients_.vectors = shard_.vectors(summed_);
  gradients_.weights = parameters.bind(DType::f32, [&](const Parameter& p) -> void* {
    if (p.offset < parameters.vectors_size()) return summed_.t.as<float>() + p.offset;
    std::size_t i = 0;
    while (sections[i].layer != p.layer) ++i;
    return where_[i] + (p.offset - sections[i].offset);
  });
}

std::size_t DataParallel::gradient_bytes() const {
  return gradients_.arena.memory.bytes() + matrices_.memory.bytes() + summed_.memory.bytes();
}

Tensor DataParallel::section_gradients(std::size_t i) const {
  return Tensor(where_[i], DType::f32, ctx_.device(), {model_.parameters().sections()[i].size});
}

Tensor DataParallel::summed() const { return zero_ > 0 ? summed_.t : gradients_.arena.t; }

void DataParallel::prepare(TrainPass::Step& step, std::int64_t piece, std::int64_t pieces) {
  if (!several()) return;
  if (piece == 0) step.layer_needed = [this](std::int64_t layer) { needed(layer); };
  step.matrices_anew = zero_ == 2;
  // Before its backward, what the micro-batch before it left in the places of layers must be on its way no more.
  if (piece > 0 && zero_ == 2)
    step.layer_needed = [this](std::int64_t layer) {
      for (std::size_t i = 0; layer > model_.config().layers && i < reduced_.size(); ++i) wait(reduced_[i]);
    };
  if (zero_ < 2 && piece + 1 < pieces) return;
  const bool add = zero_ == 2 && piece > 0;
  step.layer_done = [this, add](std::int64_t layer) { layer_done(layer, add); };
}

void DataParallel::idle(std::int64_t pieces, std::int64_t most) {
  if (!several()) return;
  if (pieces == 0) {
    wait_for_weights();
    if (gradients_.vectors.size() > 0) zero(ctx_, gradients_.vectors);
  }
  // With zero 0 and 1 gradients are added up once a step, whatever the number of micro-batches.
  const std::int64_t missing = zero_ == 2 ? most - pieces : pieces == 0 ? 1 : 0;
  const auto& sections = model_.parameters().sections();
  for (std::int64_t m = 0; m < missing; ++m)
    for (std::size_t i = sections.size(); i-- > 0;) {
      const Tensor g = section_gradients(i);
      for (std::size_t j = i + 1; j < sections.size(); ++j)  // whose place it takes
        if (where_[j] == where_[i]) collectives_->wait(reduced_[j]);
      collectives_->wait(reduced_[i]);
      zero(ctx_, g);
      layer_done(sections[i].layer, zero_ == 2 && pieces + m > 0);
    }
}

void DataParallel::layer_done(std::int64_t layer, bool add) {
  collectives_->note(layer > model_.config().layers ? "head and loss" : fmt::format("backward {}", layer));
  const auto& sections = model_.parameters().sections();
  for (std::size_t i = 0; i < sections.size(); ++i) {
    if (sections[i].layer != layer) continue;
    const Tensor g = section_gradients(i);
    const std::string name = fmt::format("reduce-scatter, layer {}", layer);
    if (zero_ == 0) {
      const std::int64_t part = sections[i].size / ranks_;
      collectives_->reduce_scatter(g, Tensor(g.as<float>() + rank_ * part, DType::f32, ctx_.device(), {part}), false, name);
      reduced_[i] = collectives_->all_gather(g, fmt::format("all-gather, layer {}", layer));
    } else {
      reduced_[i] = collectives_->reduce_scatter(g, shard_.in_arena(summed_, shard_.pieces()[i]), add, name);
    }
  }
  // The layer before this one is made next, in the place of the one behind this one.
  if (zero_ == 2)
    for (std::size_t i = 0; i < sections.size(); ++i)
      if (sections[i].layer == layer - 1 + kSlots && in_block(sections[i], model_.config())) wait(reduced_[i]);
}

void DataParallel::finish(const Tensor& loss_and_stop) {
  if (!several()) return;
  collectives_->note("backward, the rest");
  for (const auto ticket : reduced_) wait(ticket);
  if (gradients_.vectors.size() > 0) collectives_->all_reduce(gradients_.vectors, "vectors");
  collectives_->all_reduce(loss_and_stop, "loss");
  collectives_->note("sums of vectors and loss");
}

void DataParallel::norm(const Optimizer& optimizer, const Tensor& norm) {
  if (zero_ == 0) return optimizer.gradient_norm(gradients_.arena, norm);
  optimizer.squares(summed_, squares_);
  collectives_->all_reduce(squares_, "squares");
  square_root(ctx_, squares_, norm);
}

void DataParallel::publish() {
  if (several()) collectives_->note("update");
  if (zero_ == 0) return;
  const auto& sections = model_.parameters().sections();
  for (std::size_t i = 0; i < sections.size(); ++i)
    gathered_[i] = collectives_->all_gather(sections[i].values, fmt::format("all-gather, layer {}", sections[i].layer));
}

void DataParallel::needed(std::int64_t layer) {
  collectives_->note(layer == 0 ? "between steps" : fmt::format("forward {}", layer - 1));
  const auto& sections = model_.parameters().sections();
  for (std::size_t i = 0; i < sections.size(); ++i)
    if (sections[i].layer == layer) wait(gathered_[i]);
}

void DataParallel::wait_for_weights() {
  if (!several()) return;
  for (const auto ticket : gathered_) collectives_->wait(ticket);
}

void DataParallel::wait(parallel::Collectives::Ticket ticket) {
  collectives_->wait(ticket);
  collectives_->note(kWait);
}

void DataParallel::trace() {
  if (!several()) return;
  tracing_ = true;
  collectives_->trace();
}

std::string DataParallel::timeline() {
  if (!tracing_) return "";
  tracing_ = false;
  parallel::Timeline ran = collectives_->traced();
  const double begin = ran.computing.empty() ? 0 : ran.computing.front().begin;
  std::erase_if(ran.computing, [](const parallel::Traced& t) { return t.name == kWait && t.end - t.begin < kNoWait; });
  Json events = Json::array();
  const auto add = [&](const std::vector<parallel::Traced>& from, const char* row, int place) {
    events.push_back({{"name", "thread_name"}, {"ph", "M"}, {"pid", rank_}, {"tid", place}, {"args", {{"name", row}}}});
    for (const parallel::Traced& t : from)
      events.push_back({{"name", t.name},
                        {"ph", "X"},
                        {"pid", rank_},
                        {"tid", place},
                        {"ts", std::round((t.begin - begin) * 1e7) / 10},
                        {"dur", std::round((t.end - t.begin) * 1e7) / 10}});
  };
  add(ran.computing, "computing", 0);
  add(ran.collectives, "collectives", 1);
  return Json{{"traceEvents", events}}.dump(1) + "\n";
}

void DataParallel::add_up(std::vector<double>& values) {
  if (!several() || values.empty()) return;
  wait_for_weights();  // the group is asked by one thread at a time
  const std::size_t n = values.size(), ranks = static_cast<std::size_t>(ranks_);
  std::vector<double> all(n * ranks);
  std::copy(values.begin(), values.end(), all.begin() + static_cast<std::ptrdiff_t>(n * static_cast<std::size_t>(rank_)));
  group_->gather(all.data(), n * sizeof(double), n * sizeof(double));
  std::fill(values.begin(), values.end(), 0.0);
  for (std::size_t r = 0; r < ranks; ++r)
    for (std::size_t i = 0; i < n; ++i) values[i] += all[r * n + i];
}

std::int64_t DataParallel::largest(std::int64_t own) {
  if (!several()) return own;
  wait_for_weights();  // as above
  return largest_of_ranks(*group_, own);
}

bool DataParallel::first_says(bool own) { return group_ ? !parallel::gather_texts(*group_, own ? "yes" : "").front().empty() : own; }

std::vector<float> DataParallel::master(const Optimizer& optimizer, const Parameter& p) {
  if (p.frozen || p.value.dtype == DType::f32) return model_.parameters().read_value(p);  // the weights hold every bit
  const Shard::Part* own = optimizer.shard().find(p);
  if (shard_ranks() == 1) return optimizer.masters().read(*own);
  // The parts of all ranks, in their order, are the parameter.
  std::string bytes;
  if (own) {
    const std::vector<float> part = optimizer.masters().read(*own);
    bytes.assign(reinterpret_cast<const char*>(part.data()), part.size() * sizeof(float));
  }
  std::vector<float> out;
  for (const std::string& text : parallel::gather_texts(*group_, bytes)) {
    const auto* values = reinterpret_cast<const float*>(text.data());
    out.insert(out.end(), values, values + text.size() / sizeof(float));
  }
  return out;
}

}  // namespace bhyt::train

#include "cli/eval_output.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "eval/detokenize.h"
#include "io/format.h"
#include "report/evaluation.h"
#include "report/html.h"

namespace bhyt::cli {

namespace {

using OutputJson = nlohmann::ordered_json;

// The tasks with accuracies as columns: the paper's in its order, then the others as they were asked for.
std::vector<std::string> columns_of(const Evaluation& evaluation) {
  const Catalog catalog = evaluation.catalog();
  std::vector<std::string> names;
  for (const ChosenTask& chosen : evaluation.settings().selection.tasks) {
    if (chosen.task.kind != TaskKind::multiple_choice) continue;
    for (const TaskEntry& entry : catalog.tasks) {
      if (entry.name != chosen.task.name && !entry.name.starts_with(chosen.task.name + "_")) continue;
      const std::string& top = catalog.top(entry.name);
      if (std::ranges::find(names, top) == names.end()) names.push_back(top);
    }
  }
  std::vector<std::string> ordered;
  for (const std::string& name : paper_tasks())
    if (std::ranges::find(names, name) != names.end()) ordered.push_back(name);
  for (const std::string& name : names)
    if (std::ranges::find(ordered, name) == ordered.end()) ordered.push_back(name);
  return ordered;
}

}  // namespace

void print_results(const Evaluation& evaluation, const std::vector<ScoredModel>& models, bool json, const std::string& html) {
  const Findings findings = findings_of(evaluation.catalog(), models, evaluation.settings().seeds, columns_of(evaluation));
  if (json)
    fmt::print("{}\n", to_json(findings).dump(2, ' ', false, OutputJson::error_handler_t::replace));
  else
    fmt::print("{}", to_table(findings));
  if (!html.empty()) report::write_html(report::render_evaluation(to_full_json(findings)), html);
}

namespace {

struct Load {
  std::int64_t documents = 0, requests = 0, sent = 0, once = 0;  // tokens as requests have them, and with each context once
};

void add(Load& load, const Question& q, const Tokenizer* tokenizer, const Reading& reading) {
  ++load.documents;
  load.requests += std::ssize(q.continuations);
  if (!tokenizer) return;
  for (const Passage& p : passages_of(*tokenizer, q, reading)) {
    load.once += std::ssize(p.context);
    for (const auto& ending : p.endings) {
      load.once += std::ssize(ending);
      load.sent += std::ssize(p.context) + std::ssize(ending);
    }
  }
}

void show(const Question& q) {
  fmt::print("\n{}, document {}, right: {}\n", q.task, q.document, q.gold);
  for (std::size_t c = 0; c < q.contexts.size(); ++c) fmt::print("---- context\n{}\n", q.contexts[c]);
  for (const std::string& continuation : q.continuations) fmt::print("---- continuation\n{}\n", continuation);
}

}  // namespace

void show_plan(const Evaluation& evaluation, const Tokenizer* tokenizer, const Reading& reading, const ChatFormat* chat) {
  std::vector<std::pair<std::string, Load>> loads;
  std::vector<Question> shown;
  const std::int64_t seed = evaluation.settings().seeds.front();
  evaluation.for_each_question(seed, chat, [&](const Question& q) {
    if (loads.empty() || loads.back().first != q.task) {
      loads.emplace_back(q.task, Load{});
      if (shown.size() < 3) shown.push_back(q);
    } else if (shown.size() < 3 && loads.size() == 1 && q.document < 3) {
      shown.push_back(q);
    }
    add(loads.back().second, q, tokenizer, reading);
  });
  for (const auto& [name, texts] : evaluation.texts()) {
    loads.emplace_back(name, Load{.documents = std::ssize(texts), .requests = std::ssize(texts)});
    for (const std::string& text : texts)
      if (tokenizer) loads.back().second.sent += std::ssize(tokenizer->encode(detokenize(text)));
    loads.back().second.once = loads.back().second.sent;
  }
  Load all;
  fmt::print("{:40} {:>10} {:>10}{}\n", "task", "documents", "requests", tokenizer ? "        tokens  contexts once" : "");
  const auto line = [&](const std::string& name, const Load& l) {
    fmt::print("{:40} {:>10} {:>10}", name, grouped(l.documents), grouped(l.requests));
    if (tokenizer) fmt::print(" {:>13} {:>14}", grouped(l.sent), grouped(l.once));
    fmt::print("\n");
  };
  for (const auto& [name, load] : loads) {
    line(name, load);
    all = {all.documents + load.documents, all.requests + load.requests, all.sent + load.sent, all.once + load.once};
  }
  if (loads.size() > 1) line("all", all);
  if (evaluation.settings().seeds.size() > 1)
    fmt::print("with all {} seeds {} documents: what a seed does not change is scored once\n", evaluation.settings().seeds.size(),
               grouped(evaluation.documents()));
  for (const Question& q : shown) show(q);
}

void print_requests(std::span<const Likelihood> all, const PrintRequests& how) {
  const auto sum = [&](auto value) {
    return std::accumulate(all.begin(), all.end(), 0.0, [&](double s, const Likelihood& l) { return s + value(l); });
  };
  const double total = sum([](const Likelihood& l) { return l.sum; }), tokens = sum([](const Likelihood& l) { return double(l.tokens); });
  if (how.json) {
    OutputJson j{{"requests", all.size()}, {"tokens", static_cast<std::int64_t>(tokens)}, {"loglikelihood", total}};
    if (how.each)
      for (const Likelihood& l : all) j["scores"].push_back({{"loglikelihood", l.sum}, {"is_greedy", l.greedy}, {"tokens", l.tokens}});
    fmt::print("{}\n", j.dump(2));
    return;
  }
  if (how.each)
    for (const Likelihood& l : all) fmt::print("{:.6f}{}\n", l.sum, l.greedy ? " greedy" : "");
  fmt::print("{} requests, {} tokens, log-likelihood {:.4f}\n", all.size(), tokens, total);
}

}  // namespace bhyt::cli

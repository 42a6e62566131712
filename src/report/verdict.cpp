#include "report/verdict.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "io/format.h"

namespace bhyt::report {

namespace {

using Runs = std::vector<const Run*>;
using Values = std::vector<std::string>;  // one of each run

// The loss that is compared: validation's, of the checkpoints that were chosen where every run has chosen one, or training's where no run
// was validated.
struct Kind {
  const char *name, *which;
  Series Run::*loss;
  const char *data, *done;  // the key of its data, and what was done on that
  bool chosen = false;

  double of(const Run& r) const { return chosen ? r.chosen->loss : (r.*loss).final_value(); }
};
constexpr Kind kValidation{"validation", "final validation", &Run::valid, "data.valid", "validated"};
constexpr Kind kChosen{"validation", "validation", &Run::valid, "data.valid", "validated", true};
constexpr Kind kTraining{"training", "final training", &Run::loss, "data.train", "trained"};

const Kind& kind_for(const std::vector<Run>& runs) {
  bool validated = false, chosen = true;
  for (const Run& r : runs) {
    validated |= !r.valid.empty();
    chosen &= r.valid.empty() || r.chosen;
  }
  return !validated ? kTraining : chosen ? kChosen : kValidation;
}

std::string names(const Runs& runs) {
  const std::size_t n = runs.size(), named = n > 5 ? 4 : n;
  std::string out;
  for (std::size_t i = 0; i < named; ++i) out += fmt::format("{}{}", i == 0 ? "" : i + 1 == n ? " and " : ", ", runs[i]->name);
  return named < n ? fmt::format("{} and {} others", out, n - named) : out;
}

Values config_values(const Runs& runs, const std::string& key) {
  Values out;
  for (const Run* r : runs) out.push_back(r->value(key) ? *r->value(key) : "");
  return out;
}

// A fingerprint of run.json. Where a run of before has none, all are compared by what the config says.
Values fingerprints(const Runs& runs, const std::string& fact, const std::string& key) {
  Values out;
  for (const Run* r : runs)
    if (const std::string* value = r->fact(fact)) out.push_back(*value);
  return out.size() == runs.size() ? out : config_values(runs, key);
}

// Lists are written without their brackets.
std::string bare(const std::string& text) {
  return text.size() > 2 && text.front() == '[' && text.back() == ']' ? text.substr(1, text.size() - 2) : text;
}

// "WHAT: x.tok (a and b), y.tok (c)", or nothing where all values are the same.
std::string difference(const Runs& runs, const std::string& what, const Values& values, const Values& shown) {
  Values kinds, labels;
  std::vector<Runs> groups;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    const auto at = static_cast<std::size_t>(std::find(kinds.begin(), kinds.end(), values[i]) - kinds.begin());
    if (at == kinds.size()) {
      kinds.push_back(values[i]);
      labels.push_back(bare(shown[i]));
      groups.emplace_back();
    }
    groups[at].push_back(runs[i]);
  }
  if (groups.size() < 2) return "";
  // Other data under the same path has no name that tells it from the first.
  const bool telling = std::set<std::string>(labels.begin(), labels.end()).size() == labels.size();
  if (!telling && runs.size() == 2) return what;
  std::string out = what;
  for (std::size_t i = 0; i < groups.size(); ++i)
    out += fmt::format("{}{}({})", i == 0 ? ": " : ", ", telling ? labels[i] + " " : "", names(groups[i]));
  return out;
}

std::string difference(const Runs& runs, const std::string& what, const Values& values) { return difference(runs, what, values, values); }

// Tokens trained on before the final loss was taken. train.tokens is rounded to whole steps: less than a step more or less is the same.
Values tokens_seen(const Runs& runs, const Kind& kind) {
  Values out;
  std::vector<std::pair<double, double>> seen;  // tokens, tokens of a step
  for (const Run* r : runs) {
    // Metrics without tokens count in steps.
    const double per_step = r->tokens.last() > 0 ? r->tokens.last() / r->tokens.x.back() : 1;
    const double tokens = per_step * (r->*kind.loss).x.back();
    const auto same = std::find_if(seen.begin(), seen.end(), [&](const auto& other) {
      return std::fabs(tokens - other.first) < std::max({1.0, 0.999 * per_step, 0.999 * other.second});
    });
    out.push_back(same == seen.end() ? grouped(std::llround(tokens)) : out[static_cast<std::size_t>(same - seen.begin())]);
    seen.emplace_back(tokens, per_step);
  }
  return out;
}

Values tokens_validated(const Runs& runs) {
  Values out;
  for (const Run* r : runs) out.push_back(std::isfinite(r->valid_tokens) ? grouped(std::llround(r->valid_tokens)) : "not recorded");
  return out;
}

// What the losses were measured with and on. The first difference is told: with another tokenizer, say, the tokens differ too.
std::string measured_differently(const Runs& runs, const std::string& who, const Kind& kind) {
  const bool validation = kind.data == kValidation.data;
  std::string out = difference(runs, who + " have different tokenizers", fingerprints(runs, "tokenizer", "data.tokenizer"),
                               config_values(runs, "data.tokenizer"));
  for (const char* key : {"data.seq_len", "data.attend"})
    if (out.empty()) out = difference(runs, fmt::format("{} differ in {}", who, key), config_values(runs, key));
  if (out.empty() && validation) out = difference(runs, who + " were validated on different numbers of tokens", tokens_validated(runs));
  if (!out.empty()) return out;
  const Values paths = config_values(runs, kind.data), data = validation ? fingerprints(runs, "validation_data", kind.data) : paths;
  return difference(runs, fmt::format("{} were {} on different data", who, kind.done), data, paths);
}

// Why the losses do not compare; "" where they do.
std::string obstacle(const Runs& runs, const Kind& kind) {
  Runs unknown;
  std::copy_if(runs.begin(), runs.end(), std::back_inserter(unknown), [](const Run* r) { return r->config.empty(); });
  if (!unknown.empty()) return fmt::format("without resolved.yaml it is not known what {} trained on", names(unknown));
  const std::string who = runs.size() == 2 ? names(runs) : "the runs";
  std::string out = measured_differently(runs, who, kind);
  const std::string seen = (out.empty() ? who : "they") + " were trained on different numbers of tokens";
  if (const std::string tokens = difference(runs, seen, tokens_seen(runs, kind)); !tokens.empty())
    out += (out.empty() ? "" : "; ") + tokens;
  return out;
}

std::string above_the_floor(const Run& r, double loss) {
  return r.floor ? fmt::format(" ({:.4f} above the entropy floor)", loss - *r.floor) : "";
}

std::string alone(const Run& r, const Kind& kind) {
  const bool validated = kind.loss == &Run::valid;
  const double loss = validated ? kind.of(r) : r.standing().loss;
  double step = validated ? r.valid.x.back() : r.standing().loss_step;
  if (kind.chosen) step = r.chosen->step;
  const std::string kept = kind.chosen ? ", the lowest of its checkpoints" : "";
  return fmt::format("{}: {} loss {:.4f}{} at step {:.0f}{}.", r.name, kind.name, loss, above_the_floor(r, loss), step, kept);
}

// "Lowest final validation loss: b, 2.2500; a 0.2500 higher."
std::string ranking(const Runs& ranked, const Kind& kind) {
  const Run& best = *ranked.front();
  const double lowest = kind.of(best);
  const auto more = [&](const Run* r) { return kind.of(*r) - lowest; };
  std::string out = fmt::format("Lowest {} loss: {}, {:.4f}{}", kind.which, best.name, lowest, above_the_floor(best, lowest));
  if (ranked.size() > 5) return out + fmt::format("; the others {:.4f} to {:.4f} higher.", more(ranked[1]), more(ranked.back()));
  for (std::size_t i = 1; i < ranked.size(); ++i)
    out += fmt::format("{} {} {}", i == 1 ? ";" : ",", ranked[i]->name,
                       more(ranked[i]) > 0 ? fmt::format("{:.4f} higher", more(ranked[i])) : "the same");
  return out + ".";
}

}  // namespace

Verdict judge(const std::vector<Run>& runs) {
  const Kind& kind = kind_for(runs);
  const bool validated = kind.loss == &Run::valid;
  Runs compared, without, broken;
  for (const Run& r : runs) ((r.*kind.loss).empty() ? without : std::isfinite(kind.of(r)) ? compared : broken).push_back(&r);
  if (compared.empty() && broken.empty()) return {.text = "No loss has been recorded yet."};
  Verdict out;
  if (compared.size() == 1) out.text = alone(*compared.front(), kind);
  if (compared.size() > 1) {
    const std::string why_not = obstacle(compared, kind);
    std::stable_sort(compared.begin(), compared.end(), [&](const Run* a, const Run* b) { return kind.of(*a) < kind.of(*b); });
    if (why_not.empty() && kind.of(*compared[0]) < kind.of(*compared[1])) out.best = static_cast<int>(compared[0] - runs.data());
    out.text = why_not.empty() ? ranking(compared, kind) : fmt::format("No verdict: {}.", why_not);
  }
  const auto list = [&](const std::string& what, const Runs& which) {
    if (!which.empty()) out.text += fmt::format("{}{}: {}.", out.text.empty() ? "" : " ", what, names(which));
  };
  list(fmt::format("Final {} loss not finite", kind.name), broken);
  list(validated ? "Not validated" : "No loss yet", without);
  return out;
}

}  // namespace bhyt::report

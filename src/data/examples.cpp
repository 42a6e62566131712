#include "data/examples.h"

#include <algorithm>
#include <cmath>
#include <unordered_set>

#include "core/check.h"
#include "core/log.h"
#include "io/format.h"
#include "io/hash.h"

namespace bhyt {

namespace {

constexpr std::size_t kStretch = 1024, kStretchBytes = 16 << 20;  // records and bytes that are in work at once
constexpr std::size_t kFirstDropped = 3;

// What becomes of a record.
struct Made {
  std::variant<Example, DroppedRecord> outcome;
  bool cut = false;
};

bool read_stretch(RecordFile& file, std::vector<RecordText>& stretch) {
  stretch.clear();
  std::size_t bytes = 0;
  for (RecordText record; stretch.size() < kStretch && bytes < kStretchBytes && file.next(record);) {
    bytes += record.json.size();
    stretch.push_back(std::move(record));
  }
  return !stretch.empty();
}

Made make(const RecordFile& file, const RecordText& text, const ChatFormat& format, const ExampleOptions& options) {
  Made made;
  auto parsed = file.parse(text);
  if (auto* dropped = std::get_if<DroppedRecord>(&parsed))
    made.outcome = std::move(*dropped);
  else
    made.outcome = make_example(text.index, format.turns(std::get<Record>(parsed).messages), options, &made.cut);
  return made;
}

void count_example(ExampleSummary& s, const Example& e, bool cut) {
  const std::int64_t scored = scored_tokens(e);
  ++s.kept;
  s.cut += cut;
  s.tokens += std::ssize(e.ids);
  s.scored += scored;
  s.unscored += scored == 0;
  s.lengths.push_back(static_cast<std::int32_t>(e.ids.size()));
  s.fingerprints.push_back(hash64(e.ids.data(), e.ids.size() * sizeof e.ids[0]));
}

void count_dropped(ExampleSummary& s, DroppedRecord&& record) {
  auto& of_kind = s.dropped[static_cast<std::size_t>(record.drop)];
  ++of_kind.count;
  if (of_kind.first.size() < kFirstDropped) of_kind.first.push_back(std::move(record));
}

void warn_of_dropped(const ExampleSummary& s) {
  for (const auto& d : s.dropped) {
    if (d.count == 0) continue;
    std::string first;
    for (const DroppedRecord& r : d.first)
      first += fmt::format("{}record {} (line {}): {}", first.empty() ? "" : "; ", r.index, r.line, r.detail);
    log::warning("{}: {} of {} records dropped, {}: {}{}", s.file, grouped(d.count), grouped(s.records), drop_name(d.first[0].drop), first,
                 d.count > std::ssize(d.first) ? "; …" : "");
  }
}

void refuse_nothing_to_learn(const ExampleSummary& s, const ExampleOptions& options) {
  check_usage(s.records > 0, "{} holds no records", s.file);
  check_usage(s.kept > 0, "{}: all of its {} records are dropped", s.file, grouped(s.records));
  check_usage(s.scored > 0,
              "{}: none of the {} tokens of its {} examples is scored; at data.seq_len={} the prompts leave no room for answers", s.file,
              grouped(s.tokens), grouped(s.kept), options.seq_len);
}

}  // namespace

Example make_example(std::int64_t index, std::span<const ChatFormat::Turn> turns, const ExampleOptions& options, bool* cut) {
  Example e{.index = index};
  bool shortened = false;
  for (const ChatFormat::Turn& turn : turns) {
    const std::int64_t source = std::ssize(turn.source), target = std::ssize(turn.target), room = options.seq_len - std::ssize(e.ids);
    if (room <= 0) {
      shortened = true;
      break;
    }
    std::int64_t most = room;
    if (2 * target >= room) {
      const double share = static_cast<double>(target) / static_cast<double>(source + target);  // rounded as the reference rounds it
      most = 2 * source < room ? room - source : static_cast<std::int64_t>(std::floor(static_cast<double>(room) * share));
    }
    const std::int64_t t = std::min(most, target), s = std::min(std::max<std::int64_t>(room - t, 0), source);
    e.ids.insert(e.ids.end(), turn.source.begin(), turn.source.begin() + s);
    if (options.mask_prompt)
      e.labels.insert(e.labels.end(), static_cast<std::size_t>(s), kNotScored);
    else
      e.labels.insert(e.labels.end(), turn.source.begin(), turn.source.begin() + s);
    e.ids.insert(e.ids.end(), turn.target.begin(), turn.target.begin() + t);
    e.labels.insert(e.labels.end(), turn.target.begin(), turn.target.begin() + t);
    shortened = shortened || s < source || t < target;
  }
  if (cut) *cut = shortened;
  return e;
}

std::int64_t scored_tokens(const Example& e) {
  if (e.labels.empty()) return 0;
  return std::ssize(e.labels) - 1 - std::count(e.labels.begin() + 1, e.labels.end(), kNotScored);
}

ExampleSummary for_each_example(Threads& threads, const std::string& file, const ChatFormat& format, const ExampleOptions& options,
                                const std::function<void(Example&&)>& take) {
  check_usage(options.seq_len > 0, "expected a length of at least 1 token, got {}", options.seq_len);
  RecordFile records(file);
  ExampleSummary summary{.file = file};
  std::vector<RecordText> stretch;
  std::vector<Made> made;
  while (read_stretch(records, stretch)) {
    made.assign(stretch.size(), {});
    parallel_for(threads, std::ssize(stretch), 8, [&](std::int64_t begin, std::int64_t end) {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
        made[i] = make(records, stretch[i], format, options);
    });
    summary.records += std::ssize(stretch);
    for (Made& m : made) {
      if (auto* dropped = std::get_if<DroppedRecord>(&m.outcome)) {
        count_dropped(summary, std::move(*dropped));
        continue;
      }
      count_example(summary, std::get<Example>(m.outcome), m.cut);
      take(std::move(std::get<Example>(m.outcome)));
    }
  }
  warn_of_dropped(summary);
  refuse_nothing_to_learn(summary, options);
  return summary;
}

ExampleSet read_examples(Threads& threads, const std::string& file, const ChatFormat& format, const ExampleOptions& options) {
  ExampleSet set;
  set.summary = for_each_example(threads, file, format, options, [&](Example&& e) { set.examples.push_back(std::move(e)); });
  return set;
}

std::int64_t count_shared(std::span<const std::uint64_t> some, std::span<const std::uint64_t> all) {
  const std::unordered_set<std::uint64_t> known(all.begin(), all.end());
  return std::count_if(some.begin(), some.end(), [&](std::uint64_t f) { return known.contains(f); });
}

}  // namespace bhyt

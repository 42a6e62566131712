// A grid of runs: axes whose values are settings, and every combination of them as a config of its own. Nothing here runs anything.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "core/schema.h"
#include "train/config.h"

namespace bhyt::study {

using schema::Json;

// One value of an axis: what it is called, and the keys that it sets ("norm.gain", "unit").
struct Choice {
  std::string label;
  std::vector<std::pair<std::string, Json>> settings;
};

// An axis is a key with values (train.lr), or a name of its own with named variants, each of which sets several keys.
struct Axis {
  std::string name;
  std::vector<Choice> choices;
  bool given_in_words = false;  // goes before words for every run; those of a config go behind them
};

using Axes = std::vector<Axis>;

constexpr const char* kSeedAxis = "seed";

// Where a run stands: axis and label of its value, in the order of the axes.
using Point = std::vector<std::pair<std::string, std::string>>;

struct PlannedRun {
  std::string id;  // a folder's name: bhyt-unit_lr-0.002_seed-0
  Point point;
  Json tree;  // its config, without run.dir and run.resume
};

struct Plan {
  train::Work work = train::Work::pretraining;
  std::vector<PlannedRun> runs;
};

// What a person asked for.
struct Request {
  Json base = Json::object();      // a config, which may have a section `sweep`
  std::string called = "";         // the base, in messages
  std::vector<std::string> words;  // key=a,b,c  key=0..2  key=value  variant.NAME="key=value key=value"
};

// Every combination, checked: unknown keys, wrong values and values that are given twice are a UsageError before anything runs.
Plan make_plan(const Request& request);

// The parts, for make_plan and the tests.
std::vector<std::string> split_values(const std::string& text);  // at commas outside of brackets, braces and quotes
std::vector<Json> read_values(const std::string& key, const std::string& text);
std::string label_of(const Json& value);
std::string slug(const std::string& text);  // for the name of a folder

// "bhyt unit, lr 0.002, seed 0"
std::string name_of(const Point& point);

}  // namespace bhyt::study

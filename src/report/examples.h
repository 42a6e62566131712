// What a fine-tuning run learned from: counts and lengths of its conversations, as run.json has them, and how the page shows them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace bhyt::report {

struct Run;

struct ExampleFile {
  struct Bin {
    double from = 0, to = 0, count = 0;  // tokens, both included; examples
    bool operator==(const Bin&) const = default;
  };
  std::string file, use;  // use: train or valid
  double records = 0, examples = 0, tokens = 0, scored = 0, cut = 0, unscored = 0, longest = 0, median = 0;
  std::vector<Bin> lengths;
  std::vector<std::pair<std::string, double>> dropped;  // why, and how many records
  bool operator==(const ExampleFile&) const = default;
};

struct Examples {
  double epoch_steps = 0;
  std::vector<ExampleFile> files;
};

// run.json's "examples"; what is missing or of another kind is left out.
Examples read_examples(const nlohmann::ordered_json& json);

// A table of all files, and a histogram of lengths for each; the same data of several runs stands there once. "" where no run has any.
std::string examples_html(const std::vector<Run>& runs);

}  // namespace bhyt::report

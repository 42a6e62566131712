// A checkpoint and the tokens that go through it, for what looks inside.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "analysis/depth_walk.h"
#include "analysis/tokens.h"
#include "io/checkpoint_folders.h"
#include "text/tokenizer.h"

namespace CLI {
class App;
}  // namespace CLI

namespace bhyt::cli {

// What a model is given to read. The tokenizer is the one that is named, or that of `home`; token files do without.
std::vector<TokenId> tokens_for(const ModelConfig& c, const analysis::TokenSource& source, const std::string& home,
                                const std::string& tokenizer, Verify verify);

// --model, --data and what belongs to them.
struct OnModel {
  std::string model, adapter, tokenizer, key = "text";
  std::vector<std::string> data;
  bool no_verify = false;
  std::int64_t tokens = 2048, seq = 0;

  void add_to(CLI::App& app);
  Verify verify() const { return no_verify ? Verify::no : Verify::yes; }
  void check() const;  // both or neither

  struct Opened {
    std::unique_ptr<Model> model;
    analysis::TokenRows rows;
    std::string name;
  };
  Opened open(Context& ctx, DType type) const;
  Opened open_new(Context& ctx, const ModelConfig& config, DType type) const;  // a new model, which reads ids drawn at random

 private:
  std::int64_t row_length(const ModelConfig& c) const { return seq > 0 ? seq : std::min<std::int64_t>(trained_length(c), 512); }
};

}  // namespace bhyt::cli

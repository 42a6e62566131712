#include "cli/analyze_model.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>

#include "cli/cli.h"
#include "cli/text_options.h"
#include "core/check.h"
#include "model/checkpoint_files.h"

namespace bhyt::cli {

void OnModel::add_to(CLI::App& app) {
  app.add_option("--model", model, "checkpoint folder, or a run directory: its best or newest checkpoint");
  app.add_option("--data", data, "what the model reads: texts (.txt, .jsonl, plain or with .gz or .zst) or token files; may be given again")
      ->allow_extra_args(false);
  app.add_option("--tokens", tokens, "how many tokens, in whole rows")->capture_default_str()->transform(count())->check(between(1));
  app.add_option("--seq-len", seq, "tokens of a row (default: what the model was trained with, up to 512)")
      ->transform(count())
      ->check(between(2));
  app.add_option("--tokenizer", tokenizer, "tokenizer file or folder (otherwise the checkpoint's own)");
  app.add_option("--key", key, "key of the text in JSONL objects")->capture_default_str();
  app.add_option("--adapter", adapter, kAdapterHelp);
  app.add_flag("--no-verify", no_verify, kNoVerifyHelp);
}

void OnModel::check() const {
  check_usage(model.empty() == data.empty(), "--model and --data go together: {} is missing", model.empty() ? "--model" : "--data");
}

std::vector<TokenId> tokens_for(const ModelConfig& c, const analysis::TokenSource& source, const std::string& home,
                                const std::string& tokenizer, Verify verify) {
  const bool named = !tokenizer.empty() || holds_tokenizer(home) || analysis::has_text(source);
  const auto words = named ? open_tokenizer(home, tokenizer, c.vocab, verify) : nullptr;
  return analysis::read_tokens(source, words.get(), c.vocab);
}

OnModel::Opened OnModel::open(Context& ctx, DType type) const {
  const std::filesystem::path checkpoint = named_checkpoint(model, verify());
  const std::filesystem::path beside = ModelOption{.named = model, .adapter = adapter, .no_verify = no_verify}.find_adapter();
  Opened o{.model = load_with_adapter(ctx, checkpoint, beside, type, {}), .name = model};
  const ModelConfig& c = o.model->config();
  const std::int64_t length = row_length(c), rows = std::max<std::int64_t>(1, tokens / length);
  check_usage(length <= c.max_positions, "--seq-len {} is more than the {} tokens that the model reads at most", length, c.max_positions);
  const std::vector<TokenId> ids =
      tokens_for(c, {.inputs = data, .key = key, .tokens = rows * length}, tokenizer_home(checkpoint, beside), tokenizer, verify());
  check_usage(std::ssize(ids) >= length, "--data holds {} tokens, which is less than a row of {}; --seq-len N takes shorter ones",
              ids.size(), length);
  o.rows = {.batch = std::ssize(ids) / length, .seq = length};
  o.rows.tokens.assign(ids.begin(), ids.begin() + o.rows.batch * length);
  return o;
}

OnModel::Opened OnModel::open_new(Context& ctx, const ModelConfig& config, DType type) const {
  Opened o{.model = std::make_unique<Model>(ctx, config, type)};
  o.model->parameters().initialize(0);
  o.model->refresh_constants();
  const std::int64_t length = row_length(config);
  o.rows = analysis::random_tokens(std::max<std::int64_t>(1, tokens / length), length, config.vocab, 1);
  o.name = fmt::format("a new {}", config.preset.empty() ? "model" : config.preset);
  return o;
}

}  // namespace bhyt::cli

#include "cli/text_options.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "cli/cli.h"
#include "core/check.h"
#include "core/log.h"
#include "data/files.h"
#include "io/hash.h"
#include "model/adapter.h"
#include "model/checkpoint.h"
#include "model/checkpoint_files.h"

namespace bhyt::cli {

void add_sampling(CLI::App& app, Sampling& options) {
  app.add_option("--temperature", options.temperature, "0 = always the likeliest token")->capture_default_str();
  app.add_option("--top-k", options.top_k, "draw from the k likeliest only (0 = all)")->capture_default_str()->transform(count());
  app.add_option("--top-p", options.top_p, "draw from the likeliest that reach probability p")->capture_default_str();
  app.add_option("--min-p", options.min_p, "draw from tokens at least p times as likely as the likeliest")->capture_default_str();
  app.add_option("--repetition-penalty", options.repetition_penalty, "makes tokens of the prompt and the answer less likely (1 = off)")
      ->capture_default_str();
  app.add_option("--seed", options.seed, "of the draws")->capture_default_str()->check(between(0));
}

void RepackOption::add_to(CLI::App& app) {
  app.add_option("--weights", weights,
                 "int8, or on a GPU fp8: the weights of products rounded to 8 bits, a scale for each row (otherwise dtype)");
  app.add_flag("--no-fold", no_fold, "keep the norms' gains apart from the weights behind them");
}

void RepackOption::add_load_to(CLI::App& app) {
  app.add_option("--load", load, "mapped: weights stay in their file where they can, gains apart; on the CPU (copied: into memory)")
      ->capture_default_str();
}

Load RepackOption::loading() const {
  check_usage(load == "copied" || load == "mapped", "--load takes copied or mapped, got {}", load);
  return load == "mapped" ? Load::mapped : Load::copied;
}

Model::Repack RepackOption::how() const {
  check_usage(weights.empty() || weights == "int8" || weights == "fp8", "--weights takes int8 or fp8, got {}", weights);
  Model::Repack how{.fold = !no_fold};
  if (!weights.empty()) how.weights = weights == "int8" ? DType::i8 : DType::f8;
  return how;
}

std::unique_ptr<Model> load_with_adapter(Context& ctx, const std::filesystem::path& checkpoint, const std::filesystem::path& adapter,
                                         DType type, const std::optional<Model::Repack>& how, Load load) {
  if (adapter.empty()) return load_model(ctx, checkpoint, type, how, load);
  const Adapter merged(adapter);
  return load_model(ctx, checkpoint, type, how, load, &merged);
}

std::string tokenizer_home(const std::filesystem::path& checkpoint, const std::filesystem::path& adapter) {
  return !adapter.empty() && holds_tokenizer(adapter) ? adapter.string() : checkpoint.string();
}

std::string identity_of(const std::filesystem::path& checkpoint, const std::filesystem::path& adapter) {
  Hash64 hash;
  if (!adapter.empty())
    for (const char* file : {kAdapterConfig, kAdapterWeights}) hash.add(hash_file(adapter / file));
  if (const auto manifest = checkpoint / kManifest; std::filesystem::exists(manifest)) {
    hash.update(read_text(manifest));
  } else {
    const WeightFiles files(checkpoint);
    hash.update(read_text(checkpoint / "config.json"));
    for (const auto& file : files.files()) {
      hash.update(file->path().filename().string());
      hash.add(hash_file(file->path()));
    }
  }
  return fmt::format("{:016x}", hash.digest());
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& checkpoint, const std::string& named, std::int64_t vocab, Verify verify,
                                          const std::string& otherwise) {
  const bool own = holds_tokenizer(checkpoint);
  check_usage(own || !named.empty(), "{} holds no tokenizer: --tokenizer PATH names one{}", checkpoint, otherwise);
  auto tokenizer = named.empty() ? load_tokenizer(checkpoint, verify) : load_tokenizer(named);
  const std::int64_t ids = tokenizer->vocab_size(), padding = std::max<std::int64_t>(256, ids / 8);
  const auto trusted = [&] {
    return own && (named.empty() || load_tokenizer(checkpoint, verify)->fingerprint() == tokenizer->fingerprint());
  };
  check(ids <= vocab && (vocab <= ids + padding || trusted()), "the tokenizer {} has {} ids, the model {}: they do not belong together",
        named.empty() ? "of " + checkpoint : named, ids, vocab);
  if (own && !trusted()) log::warning("{} is not the tokenizer that {} was trained with", named, checkpoint);
  return tokenizer;
}

}  // namespace bhyt::cli

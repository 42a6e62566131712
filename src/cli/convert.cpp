// bhyt convert: between checkpoint forms (types, shards, llama2.c) and between token files (ours and llm.c's).
#include <CLI/CLI.hpp>
#include <filesystem>

#include "cli/cli.h"
#include "cli/commands.h"
#include "core/check.h"
#include "core/log.h"
#include "data/files.h"
#include "data/token_file.h"
#include "model/adapter.h"
#include "model/checkpoint_convert.h"
#include "model/checkpoint_files.h"
#include "model/llama2c.h"
#include "text/tokenizer.h"

namespace bhyt::cli {

namespace {

namespace fs = std::filesystem;

const std::map<std::string, DType> kTypes = {{"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}};

struct ConvertArgs {
  std::string source, out, dtype, tokenizer, merge;
  std::int64_t max_shard = 5'000'000'000;
  bool shard_given = false, no_verify = false, force = false;
};

// llama2.c keeps its tokenizer in a file of its own: NAME_tokenizer.bin or tokenizer.bin beside the model.
std::string tokenizer_beside(const fs::path& model) {
  const fs::path dir = model.parent_path();
  for (const fs::path& p : {dir / (model.stem().string() + "_tokenizer.bin"), dir / "tokenizer.bin"})
    if (fs::is_regular_file(p)) return p.string();
  return "";
}

void add_tokenizer(const ConvertArgs& a, std::int64_t vocab, const fs::path& dir) {
  const std::string path = a.tokenizer.empty() ? tokenizer_beside(a.source) : a.tokenizer;
  if (path.empty()) return log::info("no tokenizer beside {}: the checkpoint takes and gives ids only (--tokenizer adds one)", a.source);
  const auto tokenizer = load_tokenizer(path);
  const bool fits = tokenizer->vocab_size() <= vocab;
  if (!fits && a.tokenizer.empty())
    return log::warning("{} has {} tokens, more than the model's {}: left out", path, tokenizer->vocab_size(), vocab);
  check(fits, "{} has {} tokens, more than the model's {}", path, tokenizer->vocab_size(), vocab);
  tokenizer->save(dir);
}

// An adapter that was saved with a tokenizer of its own (its chat template, its end token) speaks that one.
void take_tokenizer(const fs::path& adapter, const fs::path& dir) {
  if (holds_tokenizer(adapter)) copy_companions(adapter, dir);
}

int convert_token_file(const ConvertArgs& a) {
  check_usage(a.dtype.empty(), "--dtype is for checkpoints; {} is a token file", a.source);
  check_usage(a.merge.empty(), "--merge is for checkpoints; {} is a token file", a.source);
  const TokenFileInfo info = TokenFile(a.source).info();
  TokenFormat format = TokenFormat::bhyt;
  if (info.format == TokenFormat::bhyt) format = info.token_bytes == 2 ? TokenFormat::llmc_gpt2 : TokenFormat::llmc_llama3;
  const std::uint64_t shard_tokens =
      a.shard_given ? std::max<std::uint64_t>(1, static_cast<std::uint64_t>(a.max_shard) / info.token_bytes) : 0;
  for (const std::string& file : convert_tokens(a.source, a.out, format, shard_tokens, a.force))
    log::info("{}: {} tokens, {}", file, TokenFile(file).tokens(), name_of(format));
  return 0;
}

}  // namespace

int cmd_convert(const Args& args) {
  CLI::App app(
      "Checkpoints: another type, another number of files, a legacy llama2.c .bin to a folder.\n"
      "Token files: ours to llm.c's and back.",
      "bhyt convert");
  ConvertArgs a;
  app.add_option("source", a.source, "checkpoint folder, run directory (its best or newest checkpoint), llama2.c .bin, or token file")
      ->required();
  app.add_option("--out", a.out, "what to write: a new folder, or a token file")->required();
  app.add_option("--dtype", a.dtype, "fp32, bf16 or fp16; default: as stored")->check(CLI::IsMember(kTypes));
  CLI::Option* shard = app.add_option("--max-shard", a.max_shard, "most bytes in one file: 5GB, 500MB, 2GiB")
                           ->default_str("5GB")
                           ->transform(
                               CLI::AsNumberWithUnit(std::map<std::string, std::int64_t>{{"B", 1},
                                                                                         {"KB", 1000},
                                                                                         {"MB", 1'000'000},
                                                                                         {"GB", 1'000'000'000},
                                                                                         {"KiB", 1ll << 10},
                                                                                         {"MiB", 1ll << 20},
                                                                                         {"GiB", 1ll << 30}}));
  app.add_option("--tokenizer", a.tokenizer, "for a llama2.c file: its tokenizer; default: NAME_tokenizer.bin or tokenizer.bin beside it");
  app.add_option("--merge", a.merge, "adapter folder as PEFT has them, or a run directory, to be merged into the checkpoint's weights");
  app.add_flag("--no-verify", a.no_verify, kNoVerifyHelp);
  app.add_flag("--force", a.force, "replace the token file that is there");
  parse(app, args);
  a.shard_given = shard->count() > 0;
  check_usage(a.max_shard > 0, "--max-shard must be greater than 0, got {}", a.max_shard);
  check(fs::exists(a.source), "{}: no such file or folder", a.source);
  if (fs::is_regular_file(a.source) && TokenFile::recognised(a.source)) return convert_token_file(a);

  check_usage(!a.force, "--force is for token files; a folder with a checkpoint is not replaced, give --out another one");
  check_output_folder(a.out);
  ConvertOptions options{.max_shard = static_cast<std::uint64_t>(a.max_shard)};
  if (!a.dtype.empty()) options.dtype = kTypes.at(a.dtype);
  if (!fs::is_directory(a.source))
    options.finish = [&](const fs::path& dir) { add_tokenizer(a, Llama2cFile(a.source).config().vocab, dir); };
  else
    check_usage(a.tokenizer.empty(), "--tokenizer is for llama2.c files; a folder brings its own");
  const Verify verify = a.no_verify ? Verify::no : Verify::yes;
  const fs::path source = fs::is_directory(a.source) ? named_checkpoint(a.source, verify) : fs::path(a.source);
  std::optional<Adapter> adapter;
  if (!a.merge.empty()) {
    check_usage(fs::is_directory(a.source), "--merge is for checkpoint folders; {} is a file: convert it first", a.source);
    adapter.emplace(named_adapter(a.merge, verify));
    options.merge = &*adapter;
    options.finish = [&](const fs::path& dir) { take_tokenizer(adapter->path(), dir); };
  }
  convert_checkpoint(source, a.out, options);
  log::info("{} written; bhyt info {} says what it holds", a.out, a.out);
  return 0;
}

}  // namespace bhyt::cli

// bhyt data synth|pack|info: a generated language of known entropy, documents → token file, what a token file holds.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/cli.h"
#include "cli/commands.h"
#include "core/check.h"
#include "core/log.h"
#include "core/signals.h"
#include "data/files.h"
#include "data/kept_tokenizer.h"
#include "data/pack.h"
#include "data/synth.h"
#include "data/token_file.h"
#include "io/format.h"
#include "train/config.h"

namespace bhyt::cli {

namespace {

using Json = nlohmann::ordered_json;

Json describe(const std::string& path, const TokenFileInfo& info, std::uint64_t bytes) {
  const KeptTokenizer kept = find_tokenizer(path, info.meta);
  return {{"path", path},
          {"kind", "token file"},
          {"format", name_of(info.format)},
          {"version", info.version},
          {"bytes", bytes},
          {"tokens", info.tokens},
          {"documents", info.format == TokenFormat::bhyt ? Json(info.documents) : Json()},
          {"token_bytes", info.token_bytes},
          {"vocab", info.meta.vocab},
          {"end_of_text", info.meta.end_of_text < 0 ? Json() : Json(info.meta.end_of_text)},
          {"tokenizer", info.meta.kind.empty() ? Json() : Json(info.meta.kind)},
          {"tokenizer_at", kept.tokenizer ? Json(kept.at) : Json()},
          {"fingerprint", info.meta.fingerprint == 0 ? Json() : Json(fmt::format("{:016x}", info.meta.fingerprint))},
          {"checksum", info.format == TokenFormat::bhyt ? Json(fmt::format("{:016x}", info.checksum)) : Json()}};
}

void print(const Json& j) {
  for (const auto& [key, value] : j.items()) {
    if (value.is_null()) continue;
    const std::string text = value.is_string()            ? value.get<std::string>()
                             : value.is_number_unsigned() ? grouped(value.get<std::uint64_t>())
                                                          : value.dump();
    fmt::print("{:<14} {}\n", key, text);
  }
}

// A token file that is moved away from the tokenizer beside it still finds this one. The cache is no place to insist on.
void keep_in_cache(const Tokenizer& tokenizer) {
  try {
    if (const std::string cache = cache_folder(); !cache.empty()) keep_tokenizer(tokenizer, cache);
  } catch (const Error&) {
  }
}

struct Common {
  bool json = false, force = false;
};

int run_pack(const PackOptions& given, const std::string& tokenizer, const Common& common) {
  check_output_file(given.out, common.force);
  const StopSignals stop("\nstopping\n");
  PackOptions o = given;
  o.interrupted = [&] { return stop.received(); };
  const auto with = load_tokenizer(tokenizer);
  const PackResult r = pack(*with, o);
  keep_in_cache(*with);
  if (r.bad_lines > 0) log::warning("{} bad line{} left out, the first: {}", r.bad_lines, r.bad_lines == 1 ? "" : "s", r.first_bad);
  const double rate = r.seconds > 0 ? static_cast<double>(r.text_bytes) / r.seconds / 1e6 : 0;
  if (common.json) {
    Json j = describe(o.out, r.file, TokenFile(o.out).file_bytes());
    j.update(
        {{"text_bytes", r.text_bytes}, {"empty_documents", r.empty}, {"bad_lines", r.bad_lines}, {"seconds", r.seconds}, {"mb_s", rate}});
    fmt::print("{}\n", j.dump(2));
  } else {
    fmt::print("{}: {} documents, {} tokens of {}{}, {:.1f} MB/s of text\n", o.out, grouped(r.file.documents), grouped(r.file.tokens),
               log::human_count(static_cast<double>(r.text_bytes), "B"),
               r.empty ? fmt::format(" ({} empty documents left out)", r.empty) : "", rate);
  }
  return 0;
}

int run_synth(const SynthOptions& given, const Common& common) {
  for (const std::string& file : synth_files(given)) check_output_file(file, common.force);
  const StopSignals stop("\nstopping\n");
  SynthOptions o = given;
  o.interrupted = [&] { return stop.received(); };
  const SynthResult r = synthesize(o);
  if (common.json)
    fmt::print("{}\n", Json{{"out", o.out},
                            {"entropy_rate", r.entropy.rate},
                            {"row_cut_nats", r.entropy.row_cut},
                            {"vocab", o.vocab},
                            {"seed", o.seed},
                            {"tokens", r.train_tokens},
                            {"valid_tokens", r.valid_tokens}}
                           .dump(2));
  else
    fmt::print("{}: {} training and {} validation tokens in {} and {} documents; entropy rate {:.6f} nats per token\n", o.out,
               grouped(r.train_tokens), grouped(r.valid_tokens), grouped(r.train_documents), grouped(r.valid_documents), r.entropy.rate);
  return 0;
}

struct InfoFlags {
  std::string file;
  bool verify = false, json = false;
  std::int64_t head = 0;
};

int run_info(const InfoFlags& flags) {
  const std::string& path = flags.file;
  const TokenFile f(path);
  if (flags.verify) f.verify();
  Json j = describe(path, f.info(), f.file_bytes());
  if (flags.verify) j["verified"] = true;
  std::vector<TokenId> ids(static_cast<std::size_t>(std::min<std::uint64_t>(static_cast<std::uint64_t>(flags.head), f.tokens())));
  f.read(0, ids.size(), ids.data());
  if (flags.head > 0) j["head"] = ids;
  if (const auto floor = entropy_floor(path, f.info().meta.kind)) j["entropy_rate"] = *floor;
  if (flags.json)
    fmt::print("{}\n", j.dump(2));
  else
    print(j);
  const TokenMeta& meta = f.info().meta;
  if (meta.fingerprint != 0 && meta.kind != "synth" && j["tokenizer_at"].is_null())
    log::info("its tokenizer is not at hand: looked for tokenizer-{:016x} beside it and in the cache folder", meta.fingerprint);
  return 0;
}

}  // namespace

int cmd_data(const std::vector<std::string>& args) {
  CLI::App app("Corpora: generate, pack into a token file, look at one", "bhyt data");
  app.require_subcommand(1);
  Common common;

  PackOptions packing;
  std::string tokenizer;
  CLI::App* pack_app =
      app.add_subcommand("pack", "documents → token file; .jsonl, .ndjson and .txt, plain, .gz or .zst; files, folders, globs");
  pack_app->add_option("--out", packing.out, "token file to write")->required();
  pack_app->add_option("--tokenizer", tokenizer, kTokenizerHelp)->required();
  pack_app->add_option("files", packing.inputs, "what to pack")->required();
  pack_app->add_option("--key", packing.key, "key of the text in JSONL objects")->capture_default_str();
  pack_app->add_flag("--lines", packing.lines, "a line of .txt is a document (otherwise the whole file is one)");
  pack_app->add_flag("--skip-bad", packing.skip_bad, "leave bad lines out and count them (otherwise the first stops)");
  pack_app->add_option("--threads", packing.threads, "threads; the file is the same with any number (0: all)")
      ->check(between(0, train::kMostThreads));
  pack_app->add_flag("--force", common.force, "replace the file that is there");
  pack_app->add_flag("--json", common.json, "print the result as JSON");

  SynthOptions synth;
  CLI::App* synth_app = app.add_subcommand("synth", "a generated language of known entropy: train.tok, valid.tok, info.json");
  synth_app->add_option("--out", synth.out, "folder to write")->required();
  synth_app->add_option("--tokens", synth.tokens, "training tokens, at least; 20K, 2M, 1B are understood")->required()->transform(count());
  synth_app->add_option("--seed", synth.seed, "of the language and the text")->capture_default_str()->check(between(0));
  synth_app->add_option("--vocab", synth.vocab, "ids, end-of-text included")->capture_default_str()->transform(count());
  synth_app->add_flag("--documents", synth.documents, "write train.jsonl and valid.jsonl of printable words instead");
  synth_app->add_flag("--force", common.force, "replace the files that are there");
  synth_app->add_flag("--json", common.json, "print the result as JSON");

  InfoFlags info;
  CLI::App* info_app = app.add_subcommand("info", "what a token file holds");
  info_app->add_option("file", info.file, "token file or llm.c shard")->required();
  info_app->add_flag("--verify", info.verify, "read everything: checksums, ids, document ends");
  info_app->add_option("--head", info.head, "show the first N tokens")->transform(count())->check(between(0));
  info_app->add_flag("--json", info.json, "print as JSON");

  parse(app, args);
  if (pack_app->parsed()) return run_pack(packing, tokenizer, common);
  if (synth_app->parsed()) return run_synth(synth, common);
  return run_info(info);
}

}  // namespace bhyt::cli

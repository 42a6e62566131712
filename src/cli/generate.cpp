// bhyt generate: continue prompts.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/prompts.h"
#include "cli/text_options.h"
#include "core/check.h"
#include "core/log.h"
#include "core/signals.h"
#include "generate/engine.h"
#include "generate/stop_texts.h"
#include "generate/utf8_stream.h"
#include "model/kv_pages.h"

namespace bhyt::cli {

namespace {

using Json = nlohmann::ordered_json;

struct Options {
  ModelOption model;
  std::string tokenizer, prompt, prompt_file;
  bool ids = false, ignore_eos = false, json = false, logprobs = false;
  std::int64_t max_tokens = 128, num = 1, kv_memory = 0;
  Sampling sampling;
  RepackOption repack;
  std::vector<std::string> stops;
  std::vector<TokenId> stop_ids;
  std::vector<std::string> words;
};

// What the answers are made with, and what prints them.
struct Job {
  const Options& options;
  const Model& model;
  std::unique_ptr<Tokenizer> tokenizer;  // none with --ids
  Prompts prompts;
  std::size_t unspoken = 0, made = 0;  // new tokens without text; all

  bool several() const { return prompts.listed || options.num > 1; }
  bool speaks(TokenId id) const { return id < tokenizer->vocab_size(); }  // others are rows of a padded model: they stand for no text
};

std::vector<TokenId> prompt_ids(const Job& job, const Prompt& prompt) {
  if (!job.tokenizer) return prompt.ids;
  std::vector<TokenId> ids = job.tokenizer->encode(prompt.text);
  if (!ids.empty()) return ids;
  // Nothing to continue: start a document.
  const auto start = job.tokenizer->bos() ? job.tokenizer->bos() : job.tokenizer->end_of_text();
  check_usage(start.has_value(), "{}the prompt is empty and the tokenizer has no token that starts a text", prompt.where);
  return {*start};
}

std::vector<TokenId> stop_ids(const Job& job) {
  std::vector<TokenId> ids = job.options.stop_ids;
  const std::int64_t vocab = job.model.config().vocab;
  for (const TokenId id : ids) check_usage(id >= 0 && id < vocab, "--stop-id {} is not below the model's vocabulary of {}", id, vocab);
  if (!job.tokenizer || job.options.ignore_eos) return ids;
  for (const TokenId id : job.tokenizer->stops()) ids.push_back(id);
  for (const std::int64_t id : job.model.config().eos)
    if (id < vocab) ids.push_back(static_cast<TokenId>(id));
  return ids;
}

// Notices in the engine's thread when an answer has come to one of the texts that end it.
std::function<bool(TokenId)> stop_at_texts(const Job& job) {
  if (job.options.stops.empty()) return {};
  return [&job, texts = StopTexts(job.options.stops)](TokenId id) mutable {
    if (job.speaks(id)) texts.push(job.tokenizer->piece(id, false));
    return texts.found();
  };
}

// Samples of a prompt lie side by side; the i-th has the seed that it would have alone as --seed + i.
std::vector<Request> make_requests(const Job& job) {
  const Options& o = job.options;
  const std::vector<TokenId> stops = stop_ids(job);
  std::vector<Request> requests;
  for (const Prompt& prompt : job.prompts.all) {
    const std::vector<TokenId> ids = prompt_ids(job, prompt);
    for (std::int64_t i = 0; i < o.num; ++i) {
      Request r{.prompt = ids, .max_tokens = o.max_tokens, .sampling = o.sampling, .stops = stops, .stop = stop_at_texts(job)};
      r.sampling.seed += static_cast<std::uint64_t>(i);
      r.logprobs = o.logprobs;
      requests.push_back(std::move(r));
    }
  }
  return requests;
}

// Pages for all requests at once where there is memory for that.
std::int64_t pages_for(const Job& job, const std::vector<Request>& requests) {
  const auto page = static_cast<std::int64_t>(KvPages::page_bytes(job.model.config(), job.model.type()));
  const std::int64_t given = job.options.kv_memory;
  check_usage(given == 0 || given >= page, "--kv-memory {} is less than a page of keys and values, which takes {} bytes", given, page);
  const std::int64_t most = given > 0 ? given / page : affordable_pages(job.model);
  std::int64_t pages = 0;
  for (const Request& r : requests)
    pages = std::min(most, pages + std::min(most, KvPages::pages_for(std::ssize(r.prompt) + std::min(r.max_tokens, most * kPageTokens))));
  return std::max<std::int64_t>(pages, 1);
}

std::vector<Answer> submit(Engine& engine, const Job& job, std::vector<Request> requests) {
  for (std::size_t i = 0; i < requests.size(); ++i) try {
      engine.check(requests[i]);
    } catch (const UsageError& e) {
      throw UsageError(job.prompts.all[i / static_cast<std::size_t>(job.options.num)].where + e.what());
    }
  return engine.submit_all(std::move(requests));
}

// The text of an answer up to what ended it.
std::string text_of(Job& job, const std::vector<TokenId>& ids) {
  std::vector<TokenId> spoken = ids;
  job.made += ids.size();
  job.unspoken += std::erase_if(spoken, [&](TokenId id) { return !job.speaks(id); });
  StopTexts texts(job.options.stops);
  const std::string text = texts.push(job.tokenizer->decode(spoken));
  return text + texts.rest();
}

Json describe(Job& job, const Answered& a, std::size_t prompt_tokens) {
  Json j{{"prompt_tokens", prompt_tokens}, {"ids", a.ids()}};
  if (job.tokenizer) j["text"] = text_of(job, a.ids());
  j["finish_reason"] = name_of(a.finish);
  if (job.options.logprobs) {
    j["logprobs"] = Json::array();
    for (const AnswerToken& t : a.tokens) j["logprobs"].push_back(t.logprob);
  }
  j["shared_tokens"] = a.shared_tokens;
  j["prompt_seconds"] = a.prompt_seconds;
  j["decode_seconds"] = a.decode_seconds;
  return j;
}

void print_line(const Json& j) { fmt::print("{}\n", j.dump(-1, ' ', false, Json::error_handler_t::replace)); }

// Shows the text of one answer as it comes.
void stream(Job& job, Answer& answer, std::size_t prompt_tokens) {
  const log::Later later(isatty(STDOUT_FILENO) == 1);  // not between the words
  StopTexts texts(job.options.stops);
  Utf8Stream whole;
  while (const auto token = answer.next()) {
    const bool spoken = job.speaks(token->id);
    ++job.made;
    job.unspoken += !spoken;
    if (spoken) fmt::print("{}", whole.push(texts.push(job.tokenizer->piece(token->id, false))));
    if (std::fflush(stdout) != 0) return answer.cancel();  // nobody reads any more
  }
  const std::string last = whole.push(texts.rest());
  fmt::print("{}{}\n", last, whole.rest());
  if (!log::stderr_is_terminal()) return;
  const Answered a = answer.wait();
  const std::size_t behind_first = a.tokens.size() - std::min<std::size_t>(a.tokens.size(), 1);
  const double rate = static_cast<double>(behind_first) / std::max(a.decode_seconds, 1e-9);
  log::info("{} prompt tokens in {:.2f} s, {} new{}", prompt_tokens, a.prompt_seconds, a.tokens.size(),
            behind_first > 0 ? fmt::format(" at {:.1f} tok/s", rate) : "");
}

// One line for each answer: JSON with --json, else its text or its ids as JSON has them. False where it failed.
bool print_answer(Job& job, Answer& answer, std::size_t i, std::size_t prompt_tokens) {
  const bool json = job.options.json;
  const auto num = static_cast<std::size_t>(job.options.num);
  Json line = json ? Json::object() : Json();
  if (json && job.several()) line = {{"prompt", i / num}, {"sample", i % num}};
  try {
    const Answered a = answer.wait();
    if (json)
      line.update(describe(job, a, prompt_tokens));
    else
      line = job.tokenizer ? Json(text_of(job, a.ids())) : Json(a.ids());
    print_line(line);
    return true;
  } catch (const Error& e) {
    if (!job.several()) throw;
    log::write(log::Level::error, fmt::format("answer {}: {}", i + 1, e.what()));
    if (json) line["error"] = e.what();
    print_line(line);
    return false;
  }
}

// The exit code.
int print_answers(Job& job, std::vector<Answer>& answers, const std::vector<std::size_t>& prompt_tokens) {
  int code = 0;
  if (!job.several() && job.tokenizer && !job.options.json)
    stream(job, answers[0], prompt_tokens[0]);
  else
    for (std::size_t i = 0; i < answers.size() && std::fflush(stdout) == 0; ++i)
      if (!print_answer(job, answers[i], i, prompt_tokens[i])) code = 1;
  if (job.unspoken > 0)
    log::warning("{} of {} new tokens have no text: their ids are not below {}, the tokenizer's vocabulary", job.unspoken, job.made,
                 job.tokenizer->vocab_size());
  return code;
}

void add_options(CLI::App& app, Options& o) {
  o.model.add_to(app);
  auto* prompt = app.add_option("--prompt", o.prompt, "the text to continue (otherwise --prompt-file or stdin)");
  app.add_option("--prompt-file", o.prompt_file, "a file with the text to continue; a .jsonl file holds one {\"prompt\": TEXT} a line")
      ->excludes(prompt);
  app.add_option("--tokenizer", o.tokenizer, "tokenizer file or folder (otherwise the checkpoint's own)");
  app.add_flag(
      "--ids", o.ids,
      "the prompt is token ids (\"5 17 3\" or \"5,17,3\"; one array a line of a .jsonl file); prints only the new ids, as one JSON "
      "array");
  app.add_option("--max-tokens", o.max_tokens, "how many new tokens at most")->capture_default_str()->transform(count());
  app.add_option("--num", o.num, "answers to each prompt; the i-th has the seed --seed + i")->capture_default_str()->transform(count());
  add_sampling(app, o.sampling);
  app.add_option("--stop", o.stops, "a text that ends the answer, which is cut before it (may be repeated)")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  app.add_option("--stop-id", o.stop_ids, "a token that ends the answer (may be repeated)")
      ->expected(1)
      ->allow_extra_args(false)
      ->take_all();
  app.add_flag("--ignore-eos", o.ignore_eos, "go on after the end-of-text token");
  app.add_flag("--json", o.json, "one JSON object an answer: ids, text, finish_reason, times");
  app.add_flag("--logprobs", o.logprobs, "with --json: the log-probability of each new token");
  app.add_option("--kv-memory", o.kv_memory,
                 "bytes for keys and values at most (otherwise what the prompts need, as far as there is memory)")
      ->transform(count());
  o.repack.add_to(app);
  o.repack.add_load_to(app);
  app.add_option("key=value", o.words, "device=auto|cpu|cuda[:N] (auto), dtype=fp32|bf16 (fp32), threads=N");
}

void check_options(const Options& o) {
  o.repack.how();
  o.repack.loading();
  constexpr std::int64_t kMost = 100000;
  check_usage(o.num >= 1 && o.num <= kMost, "--num must be from 1 to {}, got {}", kMost, o.num);
  check_usage(!o.ids || o.stops.empty(), "--stop is a text, and --ids has none: use --stop-id");
  check_usage(!o.ids || o.tokenizer.empty(), "--tokenizer has no use with --ids, which takes and gives token ids");
  check_usage(!o.logprobs || o.json, "--logprobs goes with --json");
  for (const std::string& text : o.stops) check_usage(!text.empty(), "--stop must not be empty");
  check_sampling(o.sampling);
}

}  // namespace

int cmd_generate(const Args& args) {
  CLI::App app("Continue prompts with a checkpoint", "bhyt generate");
  Options o;
  add_options(app, o);
  parse(app, args);
  check_options(o);
  const Placement where = take_placement(o.words, "auto");
  Prompts prompts = read_prompts(app.count("--prompt") ? &o.prompt : nullptr, app.count("--prompt-file") ? &o.prompt_file : nullptr, o.ids);
  Context ctx(where.device, where.threads);
  const std::filesystem::path checkpoint = o.model.find(), adapter = o.model.find_adapter();
  const auto model = load_with_adapter(ctx, checkpoint, adapter, where.dtype, o.repack.how(), o.repack.loading());
  Job job{.options = o, .model = *model, .tokenizer = nullptr, .prompts = std::move(prompts)};
  if (!o.ids)
    job.tokenizer = open_tokenizer(tokenizer_home(checkpoint, adapter), o.tokenizer, model->config().vocab, o.model.verify(),
                                   ", and --ids takes and gives token ids without");
  std::vector<Request> requests = make_requests(job);
  std::vector<std::size_t> prompt_tokens;
  for (const Request& r : requests) prompt_tokens.push_back(r.prompt.size());
  const StopSignals signals("\n", StopSignals::Second::quits);
  Engine engine(ctx, *model,
                {.pages = pages_for(job, requests), .sequences = requests.size() < 32 ? std::ssize(requests) : 0, .interrupted = [&] {
                   return signals.received() != 0;
                 }});
  std::vector<Answer> answers = submit(engine, job, std::move(requests));
  const int code = print_answers(job, answers, prompt_tokens);
  return signals.received() ? 128 + signals.received() : code;
}

}  // namespace bhyt::cli

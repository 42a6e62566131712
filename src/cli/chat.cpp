// bhyt chat: talk to a model. Messages are lines of stdin, answers go to stdout.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/text_options.h"
#include "core/check.h"
#include "core/log.h"
#include "core/signals.h"
#include "generate/conversation.h"
#include "generate/engine.h"
#include "io/files.h"
#include "model/kv_pages.h"
#include "text/chat_jinja.h"
#include "text/chat_template_yaml.h"

namespace bhyt::cli {

namespace {

struct ChatOptions {
  ModelOption model;
  std::string tokenizer, chat_template, system;
  Talk::Limits limits{.context = 0, .max_tokens = 512};
  Sampling sampling;
  RepackOption repack;
  std::vector<std::string> words;
};

ChatTemplate choose_template(const std::string& named, const std::string& tokenizer_at, const Tokenizer& tokenizer, Verify verify) {
  if (!named.empty()) return load_chat_template(named);
  if (const auto own = own_chat_template(tokenizer_at, tokenizer, verify)) {
    log::info("template {}, the tokenizer's own", own->name);
    return *own;
  }
  log::info("template default: the tokenizer names none, --template NAME chooses one of {}", chat_template_names());
  return find_chat_template("default");
}

// The one place that makes tokens. Each answer has draws of its own, and the same lines give the same session.
Talk::Continue continue_with(Engine& engine, Sampling sampling, std::vector<TokenId> stops) {
  return [&engine, sampling, stops = std::move(stops)](const std::vector<TokenId>& prompt, std::int64_t max_tokens,
                                                       const std::function<bool(TokenId)>& emit) mutable {
    Answer answer = engine.submit({.prompt = prompt, .max_tokens = max_tokens, .sampling = sampling, .stops = stops});
    ++sampling.seed;
    while (const auto token = answer.next())
      if (!emit(token->id)) return false;  // cancelled as it goes out of sight
    return answer.wait().finish == Finish::stop;
  };
}

class Session {
 public:
  explicit Session(Talk& talk) : talk_(talk), terminal_(isatty(STDIN_FILENO) == 1) {}

  void run() {
    if (terminal_) log::info("/help lists the commands, Ctrl-C stops an answer, Ctrl-D ends");
    std::string line;
    while (!over_ && next_line(line)) {
      if (line.ends_with('\r')) line.pop_back();
      if (line.starts_with('/'))
        command(line);
      else if (!line.empty())
        answer(line);
    }
  }

 private:
  bool next_line(std::string& line) const {
    if (terminal_) log::print("> ");
    const bool more = static_cast<bool>(std::getline(std::cin, line));
    if (terminal_ && !more) log::print("\n");
    return more;
  }

  void answer(const std::string& message) {
    try {
      const log::Later later(isatty(STDOUT_FILENO) == 1);  // not between the words
      int signal = 0;
      const Talk::Answer answer = listen(message, signal);
      tell(answer);
      if (signal == SIGTERM) throw Interrupted(signal);
    } catch (const UsageError& e) {  // of this message: the conversation goes on without it
      log::warning("{}", e.what());
    }
  }

  // While it lasts, signals stop the answer; at the prompt they end the program.
  Talk::Answer listen(const std::string& message, int& signal) {
    const StopSignals signals("");
    const auto show = [&](std::string_view text) {
      fmt::print("{}", text);
      return std::fflush(stdout) == 0 && signals.received() == 0;
    };
    Talk::Answer answer = talk_.say(message, show);
    signal = signals.received();
    return answer;
  }

  static void tell(const Talk::Answer& answer) {
    fmt::print("\n");
    check(std::fflush(stdout) == 0 && !std::ferror(stdout), "could not write to stdout");
    if (answer.end == Talk::End::interrupted) log::info("stopped; the conversation goes on");
    if (answer.end == Talk::End::length) log::info("the answer was cut after {} tokens", answer.tokens);
    if (answer.dropped > 0)
      log::info("the context is full: the model no longer sees the {} oldest turn{}", answer.dropped, answer.dropped > 1 ? "s" : "");
  }

  struct Command {
    const char *name, *argument, *help;
    void (Session::*run)(const std::string& argument);
  };
  static const std::vector<Command>& commands() {
    static const std::vector<Command> table = {
        {"/reset", "", "forget the conversation, keep the system message", &Session::reset},
        {"/system", "TEXT", "set the system message; without TEXT none but the template's own, if it has one", &Session::system},
        {"/save", "FILE", "write the conversation as JSON messages", &Session::save},
        {"/help", "", "these commands", &Session::help},
        {"/quit", "", "end (so does the end of the input)", &Session::quit},
    };
    return table;
  }

  void command(const std::string& line) {
    const std::size_t space = std::min(line.find(' '), line.size());
    const std::string name = line.substr(0, space), argument = line.substr(std::min(space + 1, line.size()));
    for (const Command& c : commands())
      if (name == c.name) return (this->*c.run)(argument);
    log::warning("unknown command {}; /help lists them, and a space before it sends the line as a message", name);
  }

  void reset(const std::string&) {
    talk_.reset();
    log::info("the conversation begins again");
  }

  void system(const std::string& text) {
    if (!text.empty() && !talk_.format().takes_system())
      return log::warning("template {} has no place for a system message", talk_.format().row().name);
    talk_.set_system(text.empty() ? std::nullopt : std::optional(text));
    const bool own = text.empty() && talk_.format().row().default_system;
    log::info("{}", own ? "the template's own system message" : text.empty() ? "no system message" : "the system message is set");
  }

  void save(const std::string& file) {
    nlohmann::ordered_json messages = nlohmann::ordered_json::array();
    for (const ChatMessage& m : talk_.messages()) messages.push_back({{"role", chat_role_name(m.role)}, {"content", m.content}});
    const nlohmann::ordered_json all{{"messages", messages}};
    try {
      check(!file.empty(), "expected /save FILE");
      save_as(file, all.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n");
      log::info("{} messages in {}", messages.size(), file);
    } catch (const Error& e) {
      log::warning("{}", e.what());
    } catch (const std::filesystem::filesystem_error& e) {
      log::warning("cannot write {}: {}", file, e.code().message());
    }
  }

  void help(const std::string&) {
    for (const Command& c : commands()) log::print(fmt::format("  {:<14} {}\n", fmt::format("{} {}", c.name, c.argument), c.help));
  }

  void quit(const std::string&) { over_ = true; }

  Talk& talk_;
  bool terminal_ = false, over_ = false;
};

}  // namespace

int cmd_chat(const Args& args) {
  CLI::App app("Talk to a model: a line is a message, /help lists the commands", "bhyt chat");
  ChatOptions o;
  o.model.add_to(app);
  app.add_option("--tokenizer", o.tokenizer, "tokenizer file or folder (otherwise the checkpoint's own)");
  app.add_option("--template", o.chat_template,
                 "how turns are written: " + chat_template_names() + " or a FILE.yaml (otherwise the tokenizer's own, else default)");
  app.add_option("--system", o.system, "the system message");
  app.add_option("--max-tokens", o.limits.max_tokens, "how long an answer may be")->capture_default_str()->transform(count());
  app.add_option("--context", o.limits.context, "how many tokens the model sees at once (otherwise as many as it was trained with)")
      ->transform(count());
  add_sampling(app, o.sampling);
  o.repack.add_to(app);
  o.repack.add_load_to(app);
  app.add_option("key=value", o.words, "device=auto|cpu|cuda[:N] (auto), dtype=fp32|bf16 (fp32), threads=N");
  parse(app, args);
  if (!o.chat_template.empty()) load_chat_template(o.chat_template);  // wrong ones before a model is loaded
  check_sampling(o.sampling);
  const Placement where = take_placement(o.words, "auto");
  Context ctx(where.device, where.threads);
  const std::filesystem::path checkpoint = o.model.find(), adapter = o.model.find_adapter();
  const auto model = load_with_adapter(ctx, checkpoint, adapter, where.dtype, o.repack.how(), o.repack.loading());
  const std::string home = tokenizer_home(checkpoint, adapter);
  const auto tokenizer = open_tokenizer(home, o.tokenizer, model->config().vocab, o.model.verify());
  const ChatFormat format(choose_template(o.chat_template, o.tokenizer.empty() ? home : o.tokenizer, *tokenizer, o.model.verify()),
                          *tokenizer);
  for (const SpecialToken& t : format.missing())
    check_usage(t.text != format.row().tokens.front(),
                "template {} ends answers with {}, which the tokenizer does not have: another --template", format.row().name, t.text);
  check_usage(!app.count("--system") || format.takes_system(), "template {} has no place for a system message", format.row().name);
  std::vector<TokenId> stops = format.stops();
  for (const std::int64_t id : model->config().eos)
    if (id < model->config().vocab) stops.push_back(static_cast<TokenId>(id));
  if (!app.count("--context")) o.limits.context = trained_length(model->config());
  check_usage(o.limits.context >= 1, "context must be at least 1, got {}", o.limits.context);
  Engine engine(ctx, *model,
                {.pages = std::min(KvPages::pages_for(o.limits.context), affordable_pages(*model)), .sequences = 1, .interrupted = [] {
                   return StopSignals::received() != 0;
                 }});
  if (engine.longest() < o.limits.context)
    log::warning("there is memory for a context of {} tokens, not of {}", engine.longest(), o.limits.context);
  o.limits.context = std::min(o.limits.context, engine.longest());
  Talk talk(format, o.limits, continue_with(engine, o.sampling, std::move(stops)));
  if (app.count("--system")) talk.set_system(o.system);
  Session(talk).run();
  return 0;
}

}  // namespace bhyt::cli

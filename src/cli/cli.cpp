#include "cli/cli.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <map>
#include <new>
#include <system_error>
#include <thread>

#include "bhyt_version.h"
#include "cli/commands.h"
#include "core/check.h"
#include "core/log.h"
#include "core/schema.h"
#include "core/signals.h"
#include "model/adapter.h"
#include "model/checkpoint_files.h"
#include "ops/gemm/gemm.h"
#include "parallel/launch.h"
#include "train/config.h"

namespace bhyt::cli {

namespace {

constexpr Command kCommands[] = {
    {"pretrain", "train from scratch, go on with a run, or start from a checkpoint", cmd_pretrain, true},
    {"sft", "fine-tune a checkpoint on conversations, or show what they come to", cmd_sft, true},
    {"launch", "train, evaluate or sweep with several processes through mpirun; start again after a crash", cmd_launch},
    {"plan", "memory, communication and speed of a run on GPUs that are not here", cmd_plan},
    {"generate", "continue a prompt with a checkpoint", cmd_generate},
    {"chat", "talk to a model in the terminal", cmd_chat},
    {"eval", "benchmark tasks, document by document as lm-evaluation-harness gives them", cmd_eval, true},
    {"perplexity", "how well a checkpoint predicts texts, token by token", cmd_perplexity, true},
    {"forward", "logits, loss and gradients of a checkpoint, for comparing implementations", cmd_forward},
    {"bench", "speed, each with the fraction of the machine's limit", cmd_bench},
    {"analyze", "what goes on inside a model, layer by layer; the theory, a toy stack and depth in numbers", cmd_analyze},
    {"tokenizer", "train a tokenizer; encode, decode, say what one holds", cmd_tokenizer},
    {"data", "make a synthetic language, pack documents into token files, say what a file holds", cmd_data},
    {"convert", "between checkpoint and token formats: types, shards, llama2.c, llm.c", cmd_convert},
    {"info", "what a checkpoint, tokenizer, token file or run directory holds", cmd_info},
    {"sweep", "train every combination of some keys' values, with means over seeds at the end", cmd_sweep, true},
    {"reproduce", "a table or figure of the paper, or a study of ours, by name and at any scale", cmd_reproduce},
    {"report", "one self-contained HTML file about one or several runs", cmd_report},
};

// --help was asked for and printed: unwinds to run().
struct Finished {};

std::string help_text() {
  std::string text = fmt::format(
      "bhyt {}: train and study Llama-style models under any normalization\n\n"
      "usage: bhyt <command> [CONFIG.yaml] [key=value ...] [--flags]\n\n",
      BHYT_VERSION);
  for (const Command& c : kCommands) text += fmt::format("  {:<10} {}\n", c.name, c.summary);
  return text +
         "\n  help COMMAND   what a command takes (also: bhyt COMMAND --help)\n"
         "  --version      version, commit, compiler, backends, devices\n\n"
         "Data goes to stdout, messages to stderr. Exit codes: 0 done, 1 the work failed, 2 wrong usage or config,\n"
         "130/143 interrupted after saving.\n";
}

void print_version() {
#if defined(__clang__)
  const std::string compiler = "clang " __clang_version__;
#else
  const std::string compiler = "g++ " __VERSION__;
#endif
  fmt::print("bhyt {} ({})\ncompiler  {}\nbackends  cpu ({}){}\n", BHYT_VERSION, BHYT_COMMIT, compiler, cpu::gemm_library(),
             cuda::built() ? ", cuda" : "");
  fmt::print("devices   cpu ({} threads)\n", std::thread::hardware_concurrency());
  for (int i = 0; i < cuda::device_count(); ++i) fmt::print("          cuda:{} ({})\n", i, cuda::describe(i));
}

const Command& find(const std::string& name) {
  std::vector<std::string> names;
  for (const Command& c : kCommands) {
    if (name == c.name) return c;
    names.emplace_back(c.name);
  }
  throw UsageError(fmt::format("unknown command {}{}; bhyt --help lists them all", name, suggestion(name, names)));
}

int dispatch(std::vector<std::string> args) {
  if (args.empty()) {
    log::print(help_text());
    return 2;
  }
  const std::string first = args.front();
  args.erase(args.begin());
  if (first == "--version" || first == "-V") return print_version(), 0;
  if (first == "--help" || first == "-h" || (first == "help" && args.empty())) return fmt::print("{}", help_text()), 0;
  if (first == "help") {
    const std::string command = args.front();
    args.erase(args.begin());
    args.emplace_back("--help");
    return find(command).main(args);
  }
  const Command& command = find(first);
  const int ranks = parallel::launched_ranks();
  std::vector<std::string> several;
  for (const Command& c : kCommands)
    if (c.ranks) several.emplace_back(c.name);
  check_usage(ranks == 1 || command.ranks,
              "MPI launched {} processes, and bhyt {} works in one: start it without mpirun (several are for {})", ranks, first,
              fmt::join(several, ", "));
  return command.main(args);
}

// What CLI11 found wrong, in our words where its own are those of a library.
std::string in_our_words(const CLI::App& command, const CLI::ParseError& error) {
  const std::string said = error.what();
  const std::string convert = "Could not convert: ", missing = " required ";
  if (said.starts_with(convert)) {
    const std::size_t equals = std::min(said.find(" = "), said.size());
    const std::string name = said.substr(convert.size(), equals - convert.size());
    const CLI::Option* option = command.get_option_no_throw(name);
    const std::string type = option ? option->get_type_name() : "";
    const char* expected = type == "FLOAT" ? "a number" : type == "UINT" ? "a whole number from 0" : "a whole number";
    return fmt::format("{}: expected {}, got {}", name, expected, said.substr(std::min(equals + 3, said.size())));
  }
  if (const std::size_t twice = said.find(": At Most 1 required but received"); twice != std::string::npos)
    return said.substr(0, twice) + " was given more than once";
  if (said.find(missing) != std::string::npos && said.ends_with(" missing")) return said.substr(0, said.find(':')) + " has no value";
  if (said == "A subcommand is required") return "expected a command";
  return said;
}

// " (keys have no dashes: dtype=VALUE)" for a key that was written as a flag of a command that takes such words; else nothing.
std::string as_key(const CLI::App& command, const std::string& flag) {
  const std::vector<const CLI::Option*> options = command.get_options();
  const bool takes = std::any_of(options.begin(), options.end(),
                                 [](const CLI::Option* o) { return o->get_name(true).find("key=value") != std::string::npos; });
  const std::string bare = flag.substr(std::min(flag.find_first_not_of('-'), flag.size())), key = bare.substr(0, bare.find('='));
  if (!takes || (key != "device" && key != "dtype" && key != "threads")) return "";
  return fmt::format(" (keys have no dashes: {})", bare == key ? key + "=VALUE" : bare);
}

// What is wrong with a command's arguments: CLI11 speaks of what is missing first, a mistyped flag is the likelier reason.
std::string describe_mistake(const CLI::App& app, const CLI::ParseError& error) {
  const std::vector<CLI::App*> chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.back();
  const std::string help = fmt::format("see {}{} --help", app.get_name(), chosen.empty() ? "" : " " + command.get_name());
  std::vector<std::string> unknown = app.remaining(true);
  std::stable_partition(unknown.begin(), unknown.end(), [](const std::string& word) { return word.starts_with('-'); });
  if (unknown.empty()) return fmt::format("{} ({})", in_our_words(command, error), help);
  const std::string word = unknown.front().substr(0, unknown.front().find('='));
  std::vector<std::string> known;
  if (word.starts_with('-')) {
    for (const CLI::Option* option : command.get_options())
      for (const std::string& name : option->get_lnames())
        if (name != "help") known.push_back("--" + name);  // --help is spoken of anyway
    const std::string key = as_key(command, unknown.front());
    return fmt::format("unknown flag {}{}; {}", word, key.empty() ? suggestion(word, known) : key, help);
  }
  for (const CLI::App* sub : command.get_subcommands([](const CLI::App*) { return true; })) known.push_back(sub->get_name());
  return fmt::format("unexpected {} {}{}; {}", known.empty() ? "argument" : "command", word, suggestion(word, known), help);
}

int report_error(const std::string& message, int code) {
  const parallel::Group* group = parallel::opened();
  if (parallel::told_by_another()) return code;
  log::write(log::Level::error, group && group->size() > 1 && !parallel::ends_all() && !message.starts_with("rank ")
                                    ? fmt::format("rank {} on {}: {}", group->rank(), group->host(group->rank()), message)
                                    : message);
  return code;
}

}  // namespace

std::string suggestion(const std::string& word, const std::vector<std::string>& known) {
  std::string near;
  for (const std::string& k : known)
    if (near.empty() && (word.starts_with(k) || (word.size() > 2 && k.starts_with(word)))) near = k;
  if (near.empty()) near = schema::nearest(word, known);
  return near.empty() ? "" : fmt::format(" (did you mean {}?)", near);
}

void parse(CLI::App& app, const std::vector<std::string>& args) {
  std::vector<std::string> reversed(args.rbegin(), args.rend());  // CLI11 takes them from the back
  try {
    app.parse(std::move(reversed));
  } catch (const CLI::CallForHelp& e) {
    if (!app.remaining(true).empty()) throw UsageError(describe_mistake(app, e));  // help for what there is not
    std::string text = app.help("", CLI::AppFormatMode::All);                      // with the options of its commands
    for (CLI::App* sub : app.get_subcommands()) text = sub->help(app.get_name());
    fmt::print("{}", text);
    throw Finished();
  } catch (const CLI::ParseError& e) {
    throw UsageError(describe_mistake(app, e));
  }
}

void ModelOption::add_to(CLI::App& app) {
  app.add_option("--model", named, "checkpoint folder, or a run directory: its best or newest checkpoint")->required();
  app.add_option("--adapter", adapter, kAdapterHelp);
  app.add_flag("--no-verify", no_verify, kNoVerifyHelp);
}

std::filesystem::path ModelOption::find() const { return named_checkpoint(named, verify()); }

std::filesystem::path ModelOption::find_adapter() const { return adapter.empty() ? "" : named_adapter(adapter, verify()); }

CLI::Validator count() {
  const auto plain = [](std::string& text) -> std::string {
    const std::optional<double> n = schema::parse_count(text);
    if (!n) {  // a plain number, or what the option itself refuses
      std::int64_t ignored = 0;
      const bool large = std::from_chars(text.data(), text.data() + text.size(), ignored).ec == std::errc::result_out_of_range;
      return large ? fmt::format("expected a whole number of at most {}, got {}", std::numeric_limits<std::int64_t>::max(), text) : "";
    }
    if (*n != std::floor(*n) || std::fabs(*n) > 9e15) return fmt::format("expected a whole number, got {}", text);
    text = fmt::format("{:.0f}", *n);
    return "";
  };
  return {plain, ""};
}

CLI::Validator between(std::int64_t least, std::int64_t most) {
  const auto within = [least, most](std::string& text) -> std::string {
    std::int64_t n = 0;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, n);
    if (error == std::errc() && stop == end && n >= least && n <= most) return "";
    const bool open = most == std::numeric_limits<std::int64_t>::max();
    return fmt::format("expected a whole number from {}{}, got {}", least, open ? "" : fmt::format(" to {}", most), text);
  };
  return {within, ""};
}

Placement take_placement(const std::vector<std::string>& words, const char* device, DType dtype) {
  std::string where = device;
  Placement p{.device = Device::cpu(), .dtype = dtype};
  int threads = 0;
  for (const std::string& word : words) {
    const auto equals = word.find('=');
    check_usage(equals != std::string::npos, "unexpected argument {}; expected device=, dtype= or threads=", word);
    std::string key = word.substr(0, equals);
    const std::string value = word.substr(equals + 1);
    if (key.starts_with("run.")) key.erase(0, 4);
    if (key == "device") {
      where = value;
    } else if (key == "dtype") {
      p.dtype = parse_float_type(value, "dtype");
    } else if (key == "threads") {
      const char* end = value.data() + value.size();
      const auto [stop, error] = std::from_chars(value.data(), end, threads);
      check_usage(value == "auto" || (error == std::errc() && stop == end && threads >= 1 && threads <= train::kMostThreads),
                  "threads must be auto or a number from 1 to {}, got {}", train::kMostThreads, value);
    } else {
      throw UsageError(fmt::format("unknown key {}; expected device, dtype or threads", key));
    }
  }
  p.device = parse_device(where, "device");
  p.asked = where;
  p.threads = threads;
  return p;
}

// A file that is opened where stdin, stdout or stderr is closed would be read and written as one of them: a checkpoint, say. What takes the
// place of each fails as a closed one does.
void keep_standard_files_apart() {
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO})
    if (::fcntl(fd, F_GETFD) < 0 && errno == EBADF) [[maybe_unused]]
      const int taken = ::open("/dev/null", fd == STDIN_FILENO ? O_WRONLY : O_RDONLY);
}

// Whether everything that was printed has reached stdout.
bool stdout_is_whole() {
  const bool flushed = std::fflush(stdout) == 0;
  return flushed && std::ferror(stdout) == 0;
}

int run(int argc, char** argv) {
  int code = 1;
  keep_standard_files_apart();
  std::signal(SIGXFSZ, SIG_IGN);  // a limit on file sizes shows as a write that fails
  try {
    code = dispatch({argv + 1, argv + argc});
  } catch (const Finished&) {
    code = 0;
  } catch (const Interrupted& e) {
    code = report_error(e.what(), 128 + e.signal);
  } catch (const UsageError& e) {
    code = report_error(e.what(), 2);
  } catch (const std::bad_alloc&) {
    code = report_error(
        "out of memory; fewer or shorter sequences (train.micro_batch, data.seq_len, --max-tokens) or a smaller model need less", 1);
  } catch (const Error& e) {
    code = report_error(e.what(), 1);
  } catch (const std::filesystem::filesystem_error& e) {
    code = report_error(fmt::format("{}: {}", e.path2().empty() ? e.path1().string() : e.path2().string(), e.code().message()), 1);
  } catch (const std::system_error& e) {
    const bool printing = std::ferror(stdout) != 0;
    code = report_error(printing ? fmt::format("could not write to stdout: {}", e.code().message()) : e.what(), 1);
  } catch (const std::exception& e) {
    code = report_error(fmt::format("a mistake in the program: {}. Please report it with the command that led here", e.what()), 1);
  }
  // A full disk behind stdout must not look like success.
  if (!stdout_is_whole() && code == 0) code = report_error("could not write to stdout", 1);
  parallel::leave(code);
  return code;
}

}  // namespace bhyt::cli

// The command line: one file per subcommand, each a thin layer over the library. A command is a row of the table in cli.cpp.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "io/checkpoint_folders.h"

namespace CLI {
class App;
class Validator;
}  // namespace CLI

namespace bhyt::cli {

int run(int argc, char** argv);

// A subcommand: its own arguments (without "bhyt NAME"), returns the exit code; throws Error (1) or UsageError (2).
struct Command {
  const char* name;
  const char* summary;
  int (*main)(const std::vector<std::string>& args);
  bool ranks = false;  // works in several processes that MPI launches, too
};

// " (did you mean --vocab?)" where a known word is begun by the one that was given, begins it or is near; else nothing.
std::string suggestion(const std::string& word, const std::vector<std::string>& known);

// Reads a command's arguments into its CLI11 app. --help prints the app's help on stdout and ends the program with 0;
// anything wrong is a UsageError that says where to look, and names the flag that an unknown one is near.
void parse(CLI::App& app, const std::vector<std::string>& args);

// --model, --adapter and --no-verify of the commands that compute with a checkpoint.
struct ModelOption {
  std::string named, adapter;  // adapter: "" = none
  bool no_verify = false;
  void add_to(CLI::App& app);
  Verify verify() const { return no_verify ? Verify::no : Verify::yes; }
  std::filesystem::path find() const;          // the checkpoint folder, its files compared with their checksums
  std::filesystem::path find_adapter() const;  // the same of the adapter; "" where there is none
};
constexpr const char* kAdapterHelp = "adapter folder as PEFT has them, or a run directory: merged into the weights";
constexpr const char* kNoVerifyHelp = "do not compare the files with the checksums they were saved with";

// For options that take a count, as ->transform(count()): 20K, 1.5M and 1B become plain numbers.
CLI::Validator count();

// For options that take a whole number, as ->check(between(1, 1000)).
CLI::Validator between(std::int64_t least, std::int64_t most = std::numeric_limits<std::int64_t>::max());

// Where and in what type to compute, as `device=`, `dtype=` and `threads=` say it.
struct Placement {
  Device device;
  DType dtype = DType::f32;
  int threads = 0;         // all
  std::string asked = {};  // the device as the user says it
};
// Takes those words (and their long forms `run.device=` …) from a command's positional arguments; any other word is a UsageError.
// `device` auto is the first GPU where there is one; Ranks::share gives each of several ranks its own.
Placement take_placement(const std::vector<std::string>& words, const char* device = "cpu", DType dtype = DType::f32);

}  // namespace bhyt::cli

// The command line: one file per subcommand, each a thin layer over the library. A command is a row of the table in cli.cpp.
#pragma once

#include <string>
#include <vector>

namespace bhyt::cli {

int run(int argc, char** argv);

// A subcommand: its own arguments (without "bhyt NAME"), returns the exit code; throws Error (1) or UsageError (2).
struct Command {
  const char* name;
  const char* summary;
  int (*main)(const std::vector<std::string>& args);
};

}  // namespace bhyt::cli

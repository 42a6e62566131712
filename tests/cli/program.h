// Runs the built program as a user would: arguments in, exit code, stdout and stderr out.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/temporary_folder.h"

namespace bhyt::test {

namespace fs = std::filesystem;

struct Outcome {
  int code = 0;
  std::string out, err;
};

using TempFolder = TemporaryFolder;

inline std::string read_text(const fs::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline std::string quoted(const std::string& word) {
  std::string q = "'";
  for (char c : word) q += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return q + "'";
}

// `instead`: what a shell does with stdin, stdout and stderr last, in the place of files here: ">/dev/full", "2>&-".
inline Outcome bhyt(const std::vector<std::string>& args, const std::string& input = "", const std::string& instead = "") {
  const TempFolder folder;
  const auto file = [&](const char* name) { return quoted((folder.path / name).string()); };
  std::ofstream(folder.path / "in", std::ios::binary) << input;
  std::string command = quoted(BHYT_PROGRAM);
  for (const std::string& a : args) command += " " + quoted(a);
  command += " <" + file("in") + " >" + file("out") + " 2>" + file("err") + " " + instead;
  const int status = std::system(command.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), read_text(folder.path / "out"), read_text(folder.path / "err")};
}

// The folder of test data, or "" when there is none (the test skips then).
inline fs::path data_folder() {
  const char* at = std::getenv("BHYT_DATA");
  return at ? fs::path(at) : fs::path();
}

}  // namespace bhyt::test

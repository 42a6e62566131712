// Data sets for the tests of tasks: the fixtures beside BHYT_DATA, and small ones written by hand.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "core/error.h"
#include "eval/documents.h"
#include "eval/render.h"
#include "tests/data/test_util.h"

namespace bhyt::test {

inline std::filesystem::path data_folder() {
  const char* dir = std::getenv("BHYT_DATA");
  return dir ? std::filesystem::path(dir) : std::filesystem::path();
}
inline std::filesystem::path eval_fixtures() { return data_folder() / ".." / "fixtures" / "eval"; }

inline void write_rows(const std::string& file, const std::vector<nlohmann::json>& rows) {
  std::string text;
  for (const nlohmann::json& row : rows) text += row.dump() + "\n";
  write_file(file, text);
}

// Tests that need the fixtures.
class EvalFixtures : public ::testing::Test {
 protected:
  void SetUp() override {
    if (data_folder().empty()) GTEST_SKIP() << "BHYT_DATA is not set";
    ASSERT_TRUE(std::filesystem::exists(eval_fixtures() / "cases")) << "no fixtures beside " << data_folder();
  }
};

}  // namespace bhyt::test

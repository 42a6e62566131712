#include "core/log.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace bhyt {
namespace {

TEST(Log, HumanCounts) {
  EXPECT_EQ(log::human_count(0), "0");
  EXPECT_EQ(log::human_count(999), "999");
  EXPECT_EQ(log::human_count(1000), "1.00K");
  EXPECT_EQ(log::human_count(71800), "71.8K");
  EXPECT_EQ(log::human_count(374637568), "375M");
  EXPECT_EQ(log::human_count(1235814400), "1.24B");
  EXPECT_EQ(log::human_count(999999), "1.00M");  // not 1000K
  EXPECT_EQ(log::human_count(-1500), "-1.50K");
  EXPECT_EQ(log::human_count(94.1e6, "B"), "94.1 MB");
  EXPECT_EQ(log::human_count(12, "B"), "12 B");
  EXPECT_EQ(log::human_count(1500, "tok"), "1.50K tok");
}

TEST(Log, HumanTimes) {
  EXPECT_EQ(log::human_time(0), "0:00");
  EXPECT_EQ(log::human_time(59.6), "1:00");
  EXPECT_EQ(log::human_time(75), "1:15");
  EXPECT_EQ(log::human_time(4542), "1:15:42");
  EXPECT_EQ(log::human_time(-1), "?");
  EXPECT_EQ(log::human_time(INFINITY), "?");
  EXPECT_EQ(log::human_time(NAN), "?");
}

TEST(Log, FilesGetEveryMessageWithItsTime) {
  const auto path = std::filesystem::temp_directory_path() / ("bhyt_log_" + std::to_string(::getpid()) + ".txt");
  log::set_quiet(true);
  for (const char* text : {"first", "second"}) {  // opened twice: appended
    log::open_file(path.string());
    log::info("{} {}", text, 1);
    log::write(log::Level::error, "broken");
    log::close_file();
  }
  log::set_quiet(false);
  log::info("not in the file");
  std::ifstream in(path);
  std::vector<std::string> messages;
  for (std::string line; std::getline(in, line);) {
    ASSERT_GT(line.size(), 20u);
    std::string shape = line.substr(0, 20);
    std::replace_if(
        shape.begin(), shape.end(), [](unsigned char c) { return std::isdigit(c) != 0; }, 'd');
    EXPECT_EQ(shape, "dddd-dd-dd dd:dd:dd ");
    messages.push_back(line.substr(20));
  }
  std::filesystem::remove(path);
  EXPECT_EQ(messages, (std::vector<std::string>{"first 1", "error: broken", "second 1", "error: broken"}));
}

}  // namespace
}  // namespace bhyt

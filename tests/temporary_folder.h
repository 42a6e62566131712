// A folder that goes away with the test: what the tests' own folders are made of.
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <filesystem>
#include <stdexcept>
#include <string>

namespace bhyt::test {

struct TemporaryFolder {
  enum class On { disk, memory };  // memory: where there is such a place; for tests that sync a lot
  std::filesystem::path path;

  explicit TemporaryFolder(On on = On::disk) {
    const bool memory = on == On::memory && access("/dev/shm", W_OK) == 0;
    std::string name =
        ((memory ? std::filesystem::path("/dev/shm") : std::filesystem::temp_directory_path()) / "bhyt-test-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("cannot make a temporary folder");
    path = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
};

}  // namespace bhyt::test

// The Python files that let Hugging Face's transformers run a checkpoint of any method (src/model/hf), embedded at build time.
#pragma once

#include <string_view>
#include <utility>
#include <vector>

namespace bhyt {

std::vector<std::pair<const char*, std::string_view>> hf_files();  // file name, text

}  // namespace bhyt

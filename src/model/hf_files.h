// The Python files that let Hugging Face's transformers run a checkpoint of any method: src/model/hf, embedded at build time, with the rows
// of the method table written into them.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace bhyt {

std::vector<std::pair<std::string, std::string>> hf_files();                // file name, text
std::vector<std::pair<const char*, std::string_view>> embedded_hf_files();  // the same as they lie in src/model/hf

}  // namespace bhyt

// The files of studies/ and configs/, which the program carries: their text is made part of it by cmake/study_files.cmake.
#pragma once

#include <string>
#include <vector>

namespace bhyt::study {

struct BuiltInFile {
  std::string name;  // without .yaml
  std::string text;
};

const std::vector<BuiltInFile>& study_files();
const std::vector<BuiltInFile>& recipe_files();

}  // namespace bhyt::study

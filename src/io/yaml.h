// YAML to and from the JSON trees that core/schema.h reads.
#pragma once

#include <filesystem>
#include <string>

#include "core/schema.h"

namespace bhyt {

// Plain scalars are typed: null, true/false, whole numbers, numbers (5e-4 too); quoted ones stay text. `where` names the source in errors.
schema::Json parse_yaml(const std::string& text, const std::string& where);
schema::Json read_yaml(const std::filesystem::path& file);

// Block style for maps, one line for lists; parse_yaml gives the same tree back.
std::string write_yaml(const schema::Json& tree);

// "train.lr=5e-4": sets one key of the tree. The value is read as YAML (as plain text where it is none: *.tok); null takes the key away.
void apply_override(schema::Json& tree, const std::string& word);
bool is_short_for_run(const std::string& key);  // bare device, dtype, seed, threads and resume are

}  // namespace bhyt

// JSON files of checkpoint folders: read with limits, written and synced.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "io/json.h"

namespace bhyt {

schema::Json read_json(const std::filesystem::path& file);
// A whole file; Error over 64 MiB, which no config or index reaches.
std::string read_small_file(const std::filesystem::path& file);
// Writes and syncs; the caller owns the atomicity of its folder.
void write_text_synced(const std::filesystem::path& file, std::string_view text);
// A file or a folder that exists already.
void sync_path(const std::filesystem::path& path);

}  // namespace bhyt

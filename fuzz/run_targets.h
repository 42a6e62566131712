// Fuzz targets of what a run reads: corpora, configs, its own state and metrics. targets.cpp lists them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace bhyt::fuzz {

void jsonl_text(const std::uint8_t* data, std::size_t size);
void run_config(const std::uint8_t* data, std::size_t size);
void compressed_input(const std::uint8_t* data, std::size_t size);
void trainer_state(const std::uint8_t* data, std::size_t size);
void metrics_lines(const std::uint8_t* data, std::size_t size);

}  // namespace bhyt::fuzz

// What is known about the program and the machine it runs on: for the lines at a run's start, for run.json, for plans of memory.
#pragma once

#include <cstddef>
#include <string>

#include "core/context.h"
#include "core/dtype.h"
#include "core/schema.h"

namespace bhyt {

std::string program_version();              // 0.1.0
std::string program_commit();               // a1b2c3d, with -dirty behind it where files differ
std::string processor_name();               // of the host; "" where the system does not say
std::string describe_device(Context& ctx);  // cuda: NVIDIA H200 | cpu: Neoverse-N1, 2 threads

// Bytes a run may take on this device; on a CPU what the container allows, if that is less.
std::size_t total_memory(Device device);
std::size_t free_memory(Device device);  // of those, what is not taken now; 0 where the system does not say

// Operations per second that a matrix product reaches on this device: measured on a CPU (a fifth of a second), from a table for a GPU; 0
// unknown.
double peak_flops(Context& ctx, DType type);

double seconds();        // of a clock that only goes forward
double unix_time();      // seconds since 1970
std::string utc_time();  // 2026-01-31T23:59:59Z

// version, commit, machine, device, dtype, threads, processor, memory: plain values, what run.json begins with.
schema::Json machine_facts(Context& ctx, DType type);

}  // namespace bhyt

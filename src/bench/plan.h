// What each test takes of the machine's memory, known before anything is made.
#pragma once

#include "train/config.h"

namespace bhyt::bench {

// Bytes on the device, at least. Of a config whose device and type are settled.
double bytes_for_train(const train::RunConfig& c);
double bytes_for_norm(const train::RunConfig& c);
double bytes_for_norm_calls(const train::RunConfig& c);
double bytes_for_gemm(const train::RunConfig& c);
double bytes_for_attention(const train::RunConfig& c);
double bytes_for_prompt(const train::RunConfig& c);
double bytes_for_decode(const train::RunConfig& c);
double bytes_for_generation(const train::RunConfig& c);

}  // namespace bhyt::bench

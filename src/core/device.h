// Where tensors live. Work and memory on a device belong to a Context (core/context.h).
// Headers have no #ifdef: a build without CUDA links core/no_cuda.cpp, whose functions throw.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace bhyt {

struct Device {
  enum class Kind : std::uint8_t { cpu, cuda };
  Kind kind = Kind::cpu;
  std::uint8_t index = 0;

  static Device cpu() { return {}; }
  static Device cuda(int i) { return {Kind::cuda, static_cast<std::uint8_t>(i)}; }
  bool is_cuda() const { return kind == Kind::cuda; }
  bool operator==(const Device&) const = default;
};

// "cpu", "cuda:0".
std::string name_of(Device d);
// "auto" (the first GPU, or the CPU without one), "cpu", "cuda", "cuda:N". UsageError that names `key` otherwise, or when there is no such
// GPU.
Device parse_device(const std::string& text, const std::string& key = "run.device");

// The CUDA backend behind contexts and operations (core/no_cuda.cpp when it is not built in).
namespace cuda {
struct Queue;
bool built();                         // compiled in
int device_count();                   // 0 without a driver
std::string why_unusable(int index);  // "" when the GPU can be used, else the reason: driver, number, architecture
std::string describe(int index);      // "NVIDIA H200"
std::string gpu_uuid(int index);      // "GPU-…", as nvidia-smi -L has it: the same one for whoever sees that GPU
std::size_t free_bytes(int index);
std::size_t total_bytes(int index);
void use(int index);  // makes it this thread's GPU
Queue* open_queue(int index);
void* alloc(int index, std::size_t bytes);
void free(Queue& queue, void* p) noexcept;
void copy(Queue& queue, Device to, void* dst, Device from, const void* src, std::size_t bytes);
void copy_2d(Queue& queue, void* dst, std::size_t dst_pitch, const void* src, std::size_t src_pitch, std::size_t row_bytes,
             std::size_t rows);
void zero(Queue& queue, void* p, std::size_t bytes);
void synchronize(Queue& queue);
}  // namespace cuda

}  // namespace bhyt

// Stands in for core/cuda.cu in a build without CUDA.
#include "core/device.h"
#include "core/error.h"
#include "core/mirror.h"

namespace bhyt::cuda {

namespace {
[[noreturn]] void absent() { fail("this build has no CUDA backend; rebuild with the cuda preset (make build CUDA=on) or use device=cpu"); }
}  // namespace

bool built() { return false; }
int device_count() { return 0; }
std::string why_unusable(int) { return "this build has no CUDA backend"; }
std::string describe(int) { absent(); }
std::size_t free_bytes(int) { absent(); }
std::size_t total_bytes(int) { absent(); }
void* alloc(int, std::size_t) { absent(); }
void free(int, void*) noexcept {}
void copy(Device, void*, Device, const void*, std::size_t) { absent(); }
void copy_2d(int, void*, std::size_t, const void*, std::size_t, std::size_t, std::size_t) { absent(); }
void zero(int, void*, std::size_t) { absent(); }
void synchronize(int) { absent(); }

Twin* open_twin(void*, std::size_t) { absent(); }
void close_twin(Twin*) noexcept {}
void* host_side(Twin&) { absent(); }
void send(Twin&, std::size_t) { absent(); }
void receive(Twin&) { absent(); }
void release(Twin&) { absent(); }
void fetch(Twin&) { absent(); }

}  // namespace bhyt::cuda

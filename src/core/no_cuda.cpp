// Stands in for core/cuda.cu in a build without CUDA.
#include "core/device.h"
#include "core/error.h"
#include "core/graph.h"
#include "core/mirror.h"

namespace bhyt::cuda {

namespace {
[[noreturn]] void absent() { fail("this build has no CUDA backend; rebuild with the cuda preset (make build CUDA=on) or use device=cpu"); }
}  // namespace

bool built() { return false; }
int device_count() { return 0; }
std::string why_unusable(int) { return "this build has no CUDA backend"; }
std::string describe(int) { absent(); }
std::string gpu_uuid(int) { absent(); }
std::size_t free_bytes(int) { absent(); }
std::size_t total_bytes(int) { absent(); }
void use(int) { absent(); }
Queue* open_queue(int) { absent(); }
void CloseQueue::operator()(Queue*) const noexcept {}
void* alloc(int, std::size_t) { absent(); }
void free(Queue&, void*) noexcept {}
void copy(Queue&, Device, void*, Device, const void*, std::size_t) { absent(); }
void copy_2d(Queue&, void*, std::size_t, const void*, std::size_t, std::size_t, std::size_t) { absent(); }
void zero(Queue&, void*, std::size_t) { absent(); }
void synchronize(Queue&) { absent(); }

Twin* open_twin(Queue&, void*, std::size_t) { absent(); }
void close_twin(Twin*) noexcept {}
void* host_side(Twin&) { absent(); }
void send(Twin&, std::size_t) { absent(); }
void receive(Twin&) { absent(); }
void release(Twin&) { absent(); }
void fetch(Twin&, std::size_t) { absent(); }

Graph* record(Context&, const std::function<void()>&) { absent(); }
void start(Context&, Graph&) { absent(); }
void CloseGraph::operator()(Graph*) const noexcept {}

}  // namespace bhyt::cuda

// Collectives between GPUs by NCCL, on a stream of their own that waits for the context's and is waited for by it; the host never waits.
#include <dlfcn.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "core/check.h"
#include "core/memory.h"
#include "parallel/collectives.h"
#include "parallel/launch.h"
#include "parallel/nccl_kernels.h"
#include "parallel/watch_nccl.h"

namespace bhyt::parallel {

namespace {

double seconds_now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

const nccl::Api& load() {
  static const nccl::Api loaded = [] {
    void* const library = ::dlopen(nccl::kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (!library)
      throw Error(
          fmt::format("NCCL, which several GPUs need, could not be loaded: {}; install it (NVIDIA's package libnccl2, or the wheel "
                      "nvidia-nccl-cu{} with its folder lib in LD_LIBRARY_PATH)",
                      ::dlerror(), CUDART_VERSION / 1000));
    const auto find = [library](const char* name, auto& function) {
      void* const found = ::dlsym(library, name);
      check(found != nullptr, "{} has no {}; expected NCCL 2.13 or newer", nccl::kLibrary, name);
      std::memcpy(&function, &found, sizeof function);
    };
    nccl::Api api{};
    find("ncclGetErrorString", api.get_error_string);
    find("ncclGetLastError", api.get_last_error);
    find("ncclGetUniqueId", api.get_unique_id);
    find("ncclCommInitRank", api.comm_init_rank);
    find("ncclCommGetAsyncError", api.comm_get_async_error);
    find("ncclCommAbort", api.comm_abort);
    find("ncclCommDestroy", api.comm_destroy);
    find("ncclAllReduce", api.all_reduce);
    find("ncclReduceScatter", api.reduce_scatter);
    find("ncclAllGather", api.all_gather);
    return api;
  }();
  return loaded;
}

void must(const nccl::Api& api, nccl::Result result, const char* what, nccl::Comm* comm = nullptr) {
  if (result != nccl::Result::success)
    throw Error(fmt::format("[nccl] {}: {}. {}", what, api.get_error_string(result), api.get_last_error(comm)));
}

struct CloseStream {
  void operator()(cudaStream_t s) const noexcept { cudaStreamDestroy(s); }
};
using Stream = std::unique_ptr<std::remove_pointer_t<cudaStream_t>, CloseStream>;

// Of high priority: the blocks of a collective come before those of the products that wait for a multiprocessor, else it would run behind
// them instead of beside them.
Stream make_stream(int device) {
  cuda::use(device);
  int least = 0, greatest = 0;
  BHYT_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
  cudaStream_t s = nullptr;
  BHYT_CUDA(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, greatest));
  return Stream(s);
}

class NcclCollectives : public Collectives {
 public:
  NcclCollectives(Context& ctx, Group& group, const CollectiveOptions& options, const nccl::Api& api, const nccl::UniqueId& id)
      : ctx_(ctx),
        group_(group),
        options_(options),
        api_(api),
        stream_(make_stream(device())),
        ready_(make_event()),
        base_(make_event()),
        watch_(device(), group, api) {
    watch_.dog().call("start of NCCL",
                      [&] { must(api_, api_.comm_init_rank(&comm_, group.size(), id, group.rank()), "ncclCommInitRank"); });
    watch_.dog().look_at(comm_);
  }

  ~NcclCollectives() override {
    cudaSetDevice(device());
    const bool failing = std::uncaught_exceptions() > exceptions_;
    // Other ranks may never come to what is under way when this one fails. Else the watch is there while we wait.
    if (!failing) cudaStreamSynchronize(stream());
    nccl::Comm* const own = watch_.dog().release();
    const auto end = failing ? api_.comm_abort : api_.comm_destroy;
    if (own) watch_.dog().call("end of NCCL", [&] { end(own); });
  }

  Ticket reduce_scatter(const Tensor& from, const Tensor& to, bool add, const std::string& name) override {
    check(from.dtype == DType::f32 && to.dtype == DType::f32 && from.size() == to.size() * ranks(),
          "[reduce_scatter] expected fp32 and {} × {} elements, got {}", ranks(), to.size(), from.size());
    return issue(name, [&] {
      if (options_.reduce == Reduce::bf16) return reduce_bf16(from.as<float>(), to.as<float>(), to.size(), add);
      // One call, whatever the bucket: a piece of it would be a piece of every rank's part, and NCCL sends none that lie apart.
      float* const sum = add ? staging<float>(to.size()) : to.as<float>();
      sum_parts(from.data, sum, to.size(), nccl::Type::float32);
      if (add) cuda::add(stream(), sum, to.as<float>(), to.size());
    });
  }

  Ticket all_gather(const Tensor& all, const std::string& name) override {
    check(all.size() % ranks() == 0, "[all_gather] expected a multiple of {} elements, got {}", ranks(), all.size());
    return issue(name, [&] {
      const std::size_t part = all.bytes() / static_cast<std::size_t>(ranks());
      const char* const own = all.as<const char>() + part * static_cast<std::size_t>(group_.rank());
      must(api_, api_.all_gather(own, all.data, part, nccl::Type::uint8, comm_, stream()), "ncclAllGather", comm_);
    });
  }

  void wait(Ticket ticket) override { watch_.wait(cuda::stream(ctx_), ticket); }

  void all_reduce(const Tensor& t, const std::string& name) override {
    check(t.dtype == DType::f32 || t.dtype == DType::f64, "[all_reduce] expected fp32 or fp64, got {}", name_of(t.dtype));
    const nccl::Type type = t.dtype == DType::f64 ? nccl::Type::float64 : nccl::Type::float32;
    wait(issue(name, [&] {
      must(api_, api_.all_reduce(t.data, t.data, static_cast<std::size_t>(t.size()), type, nccl::Op::sum, comm_, stream()), "ncclAllReduce",
           comm_);
    }));
  }

  void trace() override {
    for (const cudaStream_t s : {cuda::stream(ctx_), stream()}) BHYT_CUDA(cudaStreamSynchronize(s));
    watch_.keep();
    notes_.clear();
    BHYT_CUDA(cudaEventRecord(base_.get(), stream()));
    BHYT_CUDA(cudaEventSynchronize(base_.get()));
    base_time_ = seconds_now();
    tracing_ = true;
  }

  void note(const std::string& name) override {
    if (!tracing_) return;
    cuda::use(device());
    notes_.push_back({name, make_event()});
    BHYT_CUDA(cudaEventRecord(notes_.back().end.get(), cuda::stream(ctx_)));
  }

  Timeline traced() override {
    for (const cudaStream_t s : {cuda::stream(ctx_), stream()}) BHYT_CUDA(cudaStreamSynchronize(s));
    tracing_ = false;
    Timeline out;
    double since = base_time_;
    for (const Note& note : notes_) {
      const double end = time_of(note.end);
      out.computing.push_back({note.name, std::exchange(since, end), end});
    }
    notes_.clear();
    for (const Issued& one : watch_.kept()) out.collectives.push_back({one.name, time_of(one.begin), time_of(one.end)});
    return out;
  }

 private:
  std::int64_t ranks() const { return group_.size(); }
  int device() const { return ctx_.device().index; }
  cudaStream_t stream() const { return stream_.get(); }

  template <class Work>
  Ticket issue(const std::string& name, const Work& work) {
    cuda::use(device());
    Issued one = watch_.take(name);
    BHYT_CUDA(cudaEventRecord(ready_.get(), cuda::stream(ctx_)));
    BHYT_CUDA(cudaStreamWaitEvent(stream(), ready_.get()));
    BHYT_CUDA(cudaEventRecord(one.begin.get(), stream()));
    watch_.dog().call(name, work);
    BHYT_CUDA(cudaEventRecord(one.end.get(), stream()));
    return watch_.add(std::move(one));
  }

  // All collectives share it, one behind the other. It grows in a run's first steps, when their sizes come up; only then the host waits.
  template <class T>
  T* staging(std::int64_t n) {
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(T);
    if (staging_.bytes() < bytes) {
      BHYT_CUDA(cudaStreamSynchronize(stream()));
      staging_ = Buffer();
      staging_ = Buffer(ctx_, bytes);
    }
    return static_cast<T*>(staging_.data());
  }

  void sum_parts(const void* from, void* to, std::int64_t part, nccl::Type type) {
    must(api_, api_.reduce_scatter(from, to, static_cast<std::size_t>(part), type, nccl::Op::sum, comm_, stream()), "ncclReduceScatter",
         comm_);
  }

  // As much at a time as the bucket says: here the pieces of the parts are packed anyway.
  void reduce_bf16(const float* from, float* to, std::int64_t n, bool add) {
    const auto bucket = static_cast<std::int64_t>(options_.bucket / sizeof(bf16));
    const std::int64_t chunk = std::min(std::max<std::int64_t>(bucket / ranks(), 1024), n);
    const std::int64_t row = (chunk + 7) / 8 * 8;  // what is received begins on 16 bytes
    bf16* const send = staging<bf16>(row * (ranks() + 1));
    bf16* const sum = send + row * ranks();
    for (std::int64_t at = 0; at < n; at += chunk) {
      const std::int64_t size = std::min(chunk, n - at);
      cuda::pack_bf16(stream(), from + at, n, send, size, group_.size());
      sum_parts(send, sum, size, nccl::Type::bfloat16);
      cuda::unpack_bf16(stream(), sum, to + at, size, add);
    }
  }

  double time_of(const Event& e) const {
    float milliseconds = 0;
    BHYT_CUDA(cudaEventElapsedTime(&milliseconds, base_.get(), e.get()));
    return base_time_ + milliseconds * 1e-3;
  }

  Context& ctx_;
  Group& group_;
  CollectiveOptions options_;
  const nccl::Api& api_;
  int exceptions_ = std::uncaught_exceptions();
  nccl::Comm* comm_ = nullptr;
  Stream stream_;
  Event ready_, base_;
  double base_time_ = 0;  // of base_, by the host's clock
  struct Note {
    std::string name;
    Event end;
  };
  std::vector<Note> notes_;
  bool tracing_ = false;
  Buffer staging_;
  NcclWatch watch_;
};

}  // namespace

std::unique_ptr<Collectives> nccl_collectives(Context& ctx, Group& group, const CollectiveOptions& options) {
  check_usage(ctx.device().is_cuda(), "[nccl] expected a context on a GPU, got one on {}", ctx.device());
  const nccl::Api* api = nullptr;
  std::vector<nccl::UniqueId> ids(static_cast<std::size_t>(group.size()));
  cuda::use(ctx.device().index);
  // Where one rank has no NCCL the others must not wait for it inside theirs.
  together(group, [&] {
    api = &load();
    if (group.rank() == 0) must(*api, api->get_unique_id(ids.data()), "ncclGetUniqueId");
  });
  group.gather(ids.data(), sizeof(nccl::UniqueId), sizeof(nccl::UniqueId));
  return std::make_unique<NcclCollectives>(ctx, group, options, *api, ids[0]);
}

}  // namespace bhyt::parallel

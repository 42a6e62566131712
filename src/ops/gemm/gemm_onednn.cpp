// oneDNN behind cpu::gemm (versions 2 and 3).
#ifdef BHYT_GEMM_ONEDNN

#include <omp.h>
#include <dnnl.hpp>

#include <array>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "core/memory.h"
#include "ops/gemm/gemm.h"
#include "ops/gemm/library.h"

namespace bhyt::cpu {

namespace {

using Type = dnnl::memory::data_type;
using Key = std::array<std::int64_t, 8>;

const dnnl::engine& engine() {
  static const dnnl::engine e(dnnl::engine::kind::cpu, 0);
  return e;
}

// oneDNN plans for one thread and runs on one, while this lives.
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_;
};

// A product of one shape, compiled. It brings its own scratch memory, so that any number of threads may run it at once.
struct Compiled {
  dnnl::memory::desc a, b, c;
  dnnl::matmul primitive;
  dnnl::memory::desc scratchpad;
};

template <class In, class Out>
std::shared_ptr<const Compiled> compile(const Product<In, Out>& p) {
  const auto type = [](auto x) { return std::is_same_v<decltype(x), bf16> ? Type::bf16 : Type::f32; };
  const auto strides = [](bool trans, std::int64_t ld) { return trans ? dnnl::memory::dims{1, ld} : dnnl::memory::dims{ld, 1}; };
  auto made = std::make_shared<Compiled>();
  made->a = {{p.m, p.k}, type(In{}), strides(p.trans_a, p.lda)};
  made->b = {{p.k, p.n}, type(In{}), strides(p.trans_b, p.ldb)};
  made->c = {{p.m, p.n}, type(Out{}), dnnl::memory::dims{p.ldc, 1}};
  dnnl::primitive_attr attributes;
  attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  dnnl::post_ops after;
  if (p.accumulate) after.append_sum(1);
  attributes.set_post_ops(after);
#if DNNL_VERSION_MAJOR >= 3
  const dnnl::matmul::primitive_desc description(engine(), made->a, made->b, made->c, attributes);
#else
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(made->a, made->b, made->c), attributes, engine());
#endif
  made->primitive = dnnl::matmul(description);
  made->scratchpad = description.scratchpad_desc();
  return made;
}

// Planning a product takes longer than a small one itself: a context keeps plans by shape, and scratch for each of its workers.
class Plans {
 public:
  explicit Plans(Context& ctx) : workers_(static_cast<std::size_t>(ctx.threads().workers())) {
    for (std::size_t i = 0; i < workers_.size(); ++i) streams_.emplace_back(engine());
  }

  template <class In, class Out>
  std::shared_ptr<const Compiled> find(const Product<In, Out>& p) {
    constexpr std::size_t kMost = 2048;  // prompts come in many lengths
    constexpr std::int64_t types = 2 * std::is_same_v<In, bf16> + std::is_same_v<Out, bf16>;
    const Key key{p.m, p.n, p.k, p.lda, p.ldb, p.ldc, types, p.trans_a + 2 * p.trans_b + 4 * p.accumulate};
    const std::lock_guard lock(mutex_);
    if (const auto it = plans_.find(key); it != plans_.end()) return it->second;
    if (plans_.size() >= kMost) plans_.clear();
    auto made = compile(p);
    most_ = std::max(most_, made->scratchpad.get_size());
    return plans_[key] = std::move(made);
  }

  // Between loops: every worker gets what the largest plan so far asks for.
  void reserve(Context& ctx) {
    if (ctx.is_settled()) return;  // a plan that is new there brings its own
    for (Buffer& b : workers_)
      if (b.bytes() < most_) b = Buffer(ctx, most_);
  }
  using Own = std::unique_ptr<void, decltype(&std::free)>;
  // A worker's scratch; one of its own for this call where a plan is new and larger.
  void* scratch(int worker, std::size_t bytes, Own& own) {
    const Buffer& b = workers_[static_cast<std::size_t>(worker)];
    if (bytes <= b.bytes()) return b.data();
    own.reset(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
    if (!own) fail("[gemm] expected " + std::to_string(bytes) + " bytes of scratch, the system gave none");
    return own.get();
  }
  dnnl::stream& stream(int worker) { return streams_[static_cast<std::size_t>(worker)]; }

 private:
  std::mutex mutex_;
  std::map<Key, std::shared_ptr<const Compiled>> plans_;
  std::vector<Buffer> workers_;
  std::vector<dnnl::stream> streams_;
  std::size_t most_ = 0;
};

template <class In, class Out>
void run(Context& ctx, const Product<In, Out>& p, int worker) {
  const OneThread use;
  Plans& plans = ctx.keep<Plans>();
  try {
    const auto plan = plans.find(p);
    const auto memory = [](const dnnl::memory::desc& d, const void* data) { return dnnl::memory(d, engine(), const_cast<void*>(data)); };
    Plans::Own own(nullptr, &std::free);
    const std::unordered_map<int, dnnl::memory> arguments{
        {DNNL_ARG_SRC, memory(plan->a, p.a)},
        {DNNL_ARG_WEIGHTS, memory(plan->b, p.b)},
        {DNNL_ARG_DST, memory(plan->c, p.c)},
        {DNNL_ARG_SCRATCHPAD, memory(plan->scratchpad, plans.scratch(worker, plan->scratchpad.get_size(), own))}};
    plan->primitive.execute(plans.stream(worker), arguments);
    plans.stream(worker).wait();
  } catch (const dnnl::error& e) {
    fail(std::string("[gemm] oneDNN: ") + e.what());
  }
}

template <class Out>
bool run_bf16(Context& ctx, const Product<bf16, Out>& p, int worker) {
  // Processors without bf16 products are served better by fp32 than by oneDNN's emulation.
  constexpr auto need = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  static const bool native = (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & need) == need;
  if (native) run(ctx, p, worker);
  return native;
}

}  // namespace

void library_gemm(Context& ctx, const Product<float, float>& p, int worker) { run(ctx, p, worker); }

void prepare_library(Context& ctx) { ctx.keep<Plans>().reserve(ctx); }

// By size alone: oneDNN may sum in another order for another shape. On all threads at once it would split the sum over k,
// and the bits would depend on their number.
std::int64_t library_pieces(int, std::int64_t m, std::int64_t n, std::int64_t k) {
  if (m * n * k < 2'000'000) return 1;
  return std::max(std::min<std::int64_t>(8, m * n / (256 * 256)), m * n / (1024 * 2048));
}

bool library_gemm_bf16(Context& ctx, const Product<bf16, float>& p, int worker) { return run_bf16(ctx, p, worker); }
bool library_gemm_bf16(Context& ctx, const Product<bf16, bf16>& p, int worker) { return run_bf16(ctx, p, worker); }

const char* gemm_library() {
  static const std::string name = [] {
    const dnnl_version_t* v = dnnl_version();
    return "oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
  }();
  return name.c_str();
}

}  // namespace bhyt::cpu

#endif

// oneDNN behind cpu::gemm (versions 2 and 3).
#ifdef BHYT_GEMM_ONEDNN

#include <omp.h>
#include <dnnl.hpp>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "core/error.h"
#include "core/scratch.h"
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
  // alpha as a scale: as an operation in front of the sum, it would leave the product to a plain loop.
#if DNNL_VERSION_MAJOR >= 3
  if (p.alpha != 1) attributes.set_scales_mask(DNNL_ARG_SRC, 0);
  const dnnl::matmul::primitive_desc description(engine(), made->a, made->b, made->c, attributes);
#else
  if (p.alpha != 1) attributes.set_output_scales(0, {p.alpha});
  const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(made->a, made->b, made->c), attributes, engine());
#endif
  made->primitive = dnnl::matmul(description);
  made->scratchpad = description.scratchpad_desc();
  return made;
}

// Planning a product takes longer than a small one itself: plans are kept by shape.
template <class In, class Out>
std::shared_ptr<const Compiled> compiled(const Product<In, Out>& p) {
  static std::mutex mutex;
  static std::map<Key, std::shared_ptr<const Compiled>> plans;
  constexpr std::size_t kMost = 2048;  // prompts come in many lengths
  std::uint32_t alpha;
  std::memcpy(&alpha, &p.alpha, 4);
  const Key key{p.m, p.n, p.k, p.lda, p.ldb, p.ldc, alpha, p.trans_a + 2 * p.trans_b + 4 * p.accumulate};
  const std::lock_guard lock(mutex);
  if (const auto it = plans.find(key); it != plans.end()) return it->second;
  if (plans.size() >= kMost) plans.clear();
  return plans[key] = compile(p);
}

template <class In, class Out>
void run(const Product<In, Out>& p) {
  const OneThread use;
  thread_local dnnl::stream stream(engine());
  try {
    const auto plan = compiled(p);
    struct Room;
    const std::size_t bytes = plan->scratchpad.get_size();
    const auto memory = [](const dnnl::memory::desc& d, const void* data) { return dnnl::memory(d, engine(), const_cast<void*>(data)); };
    std::unordered_map<int, dnnl::memory> arguments{
        {DNNL_ARG_SRC, memory(plan->a, p.a)},
        {DNNL_ARG_WEIGHTS, memory(plan->b, p.b)},
        {DNNL_ARG_DST, memory(plan->c, p.c)},
        {DNNL_ARG_SCRATCHPAD, memory(plan->scratchpad, scratch<Room>(static_cast<std::int64_t>(bytes / 4 + 1)))}};
#if DNNL_VERSION_MAJOR >= 3
    if (p.alpha != 1) arguments[DNNL_ARG_ATTR_SCALES | DNNL_ARG_SRC] = memory({{1}, Type::f32, dnnl::memory::format_tag::x}, &p.alpha);
#endif
    plan->primitive.execute(stream, arguments);
    stream.wait();
  } catch (const dnnl::error& e) {
    fail(std::string("[gemm] oneDNN: ") + e.what());
  }
}

template <class Out>
bool run_bf16(const Product<bf16, Out>& p) {
  // Processors without bf16 products are served better by fp32 than by oneDNN's emulation.
  constexpr auto need = static_cast<unsigned>(dnnl::cpu_isa::avx512_core_bf16);
  static const bool native = (static_cast<unsigned>(dnnl::get_effective_cpu_isa()) & need) == need;
  if (native) run(p);
  return native;
}

}  // namespace

void library_gemm(const Product<float, float>& p) { run(p); }

// By size alone: oneDNN may sum in another order for another shape. On all threads at once it would split the sum over k,
// and the bits would depend on their number.
std::int64_t library_pieces(std::int64_t m, std::int64_t n, std::int64_t k) {
  if (m * n * k < 2'000'000) return 1;
  return std::max(std::min<std::int64_t>(8, m * n / (256 * 256)), m * n / (1024 * 2048));
}

bool library_gemm_bf16(const Product<bf16, float>& p) { return run_bf16(p); }
bool library_gemm_bf16(const Product<bf16, bf16>& p) { return run_bf16(p); }

const char* gemm_library() {
  static const std::string name = [] {
    const dnnl_version_t* v = dnnl_version();
    return "oneDNN " + std::to_string(v->major) + "." + std::to_string(v->minor) + "." + std::to_string(v->patch);
  }();
  return name.c_str();
}

}  // namespace bhyt::cpu

#endif

// Checks and dispatch of sampling.
#include "ops/sample/sample.h"

#include "core/check.h"

namespace bhyt {

namespace {

void check_list(const char* name, const Tensor& t, DType type, const Tensor& logits) {
  check(t.dtype == type && t.size() == logits.rows() && t.device == logits.device && t.contiguous(),
        "[sample] expected {} {} [{}] on {}, got {} {} on {}", name, name_of(type), logits.rows(), logits.device, name_of(t.dtype),
        shape_string(t), t.device);
}

void check_bits(const char* name, const Tensor& t, const Tensor& logits) {
  check(!t || (t.dtype == DType::u32 && t.cols() == seen_words(logits.cols()) && t.device == logits.device && t.contiguous()),
        "[sample] expected {} uint32 of {} columns on {}, got {} {} on {}", name, seen_words(logits.cols()), logits.device,
        name_of(t.dtype), shape_string(t), t.device);
}

}  // namespace

void sample(Context& ctx, const Sample& job) {
  const Tensor& x = job.logits;
  check(x.dtype == DType::f32 && x.cols() > 0, "[sample] expected logits fp32 of at least one token, got {} {}", name_of(x.dtype),
        shape_string(x));
  check(job.rows.dtype == DType::u8 && job.rows.rows() == x.rows() && job.rows.cols() == std::int64_t{sizeof(SampleRow)} &&
            job.rows.device == x.device && job.rows.contiguous(),
        "[sample] expected rows uint8 [{}, {}] on {}, got {} {} on {}", x.rows(), sizeof(SampleRow), x.device, name_of(job.rows.dtype),
        shape_string(job.rows), job.rows.device);
  check_list("tokens", job.tokens, DType::i32, x);
  if (job.logprobs) check_list("logprobs", job.logprobs, DType::f32, x);
  check_bits("seen", job.seen, x);
  check_bits("fresh", job.fresh, x);
  const Operation operation(ctx, "sample", profile::Kind::other, x.device);
  if (ctx.device().is_cuda())
    cuda::sample(ctx, job);
  else
    cpu::sample(ctx, job);
}

}  // namespace bhyt

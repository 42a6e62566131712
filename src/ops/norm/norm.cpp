// Checks and dispatch of the norm family.
#include "ops/norm/norm.h"

#include "core/check.h"

namespace bhyt {

namespace {

void check_vector(const char* op, const char* what, const Tensor& t, std::int64_t n, bool required) {
  if (!t && !required) return;
  check(t && t.dtype == DType::f32 && t.size() == n, "[{}] expected {} fp32 [{}], got {} {}", op, what, n, name_of(t.dtype),
        shape_string(t));
}

void check_matrix(const char* op, const char* what, const Tensor& t, const Tensor& like, bool required = true) {
  if (!t && !required) return;
  check(t && t.dtype == like.dtype && t.rows() == like.rows() && t.cols() == like.cols(), "[{}] expected {} {} [{}, {}], got {} {}", op,
        what, name_of(like.dtype), like.rows(), like.cols(), name_of(t.dtype), shape_string(t));
}

void check_site(const char* op, const NormSite& s, const Tensor& x, const Tensor& stats, const Given* given, bool for_backward) {
  const std::int64_t c = x.cols(), n = x.rows();
  check(x.dtype == DType::f32 || x.dtype == DType::bf16, "[{}] expected fp32 or bf16, got {}", op, name_of(x.dtype));
  check_vector(op, "gamma", s.gamma, c, s.gate || for_backward);
  check_vector(op, "beta", s.beta, c, false);
  check_vector(op, "scale", s.scale, 1, false);
  check_vector(op, "shift", s.shift, 1, false);
  check_vector(op, "gate", s.gate, c, false);
  check_vector(op, "direction", s.direction, c, static_cast<bool>(s.gate));
  check_vector(op, "stats", stats, 2 * n, false);
  check((s.stat == Stat::given) == (given != nullptr), "[{}] expected a given statistic exactly where the site asks for one", op);
  check(!s.gate || (s.stat == Stat::rms && s.map == Map::id && !s.beta && !s.shift),
        "[{}] expected a gated gamma only with an rms statistic, the identity and neither beta nor shift", op);
  if (given) {
    check_vector(op, "ms", given->ms, n, true);
    check_vector(op, "constant", given->constant, 1, true);
    check(given->aux == 0 || given->exact, "[{}] expected a place for the exact statistic where the auxiliary loss is on", op);
    check_vector(op, "aux_by", given->aux_by, 1, false);
    check(!given->targets || (given->targets.dtype == DType::i32 && given->targets.size() == n), "[{}] expected targets int32 [{}], got {}",
          op, n, shape_string(given->targets));
  }
}

}  // namespace

void norm(Context& ctx, const NormSite& site, const NormForward& call) {
  check_site("norm", site, call.x, call.stats, call.given, false);
  check_matrix("norm", "add", call.add, call.x, false);
  check_matrix("norm", "sum", call.sum, call.x, static_cast<bool>(call.add));
  check_matrix("norm", "z", call.z, call.x);
  const Operation operation(ctx, "norm", profile::Kind::norm, call.x.device);
  if (ctx.device().is_cuda())
    cuda::norm(ctx, site, call);
  else
    cpu::norm(ctx, site, call);
}

void norm_backward(Context& ctx, const NormSite& site, const NormGrads& grads, const NormBackward& call) {
  check_site("norm_backward", site, call.x, call.stats, call.given, true);
  check_matrix("norm_backward", "dz", call.dz, call.x);
  check_matrix("norm_backward", "dx", call.dx, call.x);
  check(site.stat == Stat::none || site.stat == Stat::given || call.stats, "[norm_backward] expected the forward's statistics");
  check(!call.dms || site.stat == Stat::rms, "[norm_backward] expected a gradient of the mean square only at an rms site");
  const Operation operation(ctx, "norm_backward", profile::Kind::norm, call.x.device);
  if (ctx.device().is_cuda())
    cuda::norm_backward(ctx, site, grads, call);
  else
    cpu::norm_backward(ctx, site, grads, call);
}

void norm_scales(Context& ctx, const NormSite& site, const Tensor& stats, const Given* given, const Tensor& statistic, const Tensor& a) {
  const std::int64_t n = a.size();
  check_vector("norm_scales", "a", a, n, true);
  check_vector("norm_scales", "statistic", statistic, n, true);
  check_vector("norm_scales", "stats", stats, 2 * n, site.stat != Stat::none && site.stat != Stat::given);
  check((site.stat == Stat::given) == (given != nullptr), "[norm_scales] expected a given statistic exactly where the site asks for one");
  const Operation operation(ctx, "norm_scales", profile::Kind::norm, a.device);
  if (ctx.device().is_cuda())
    cuda::norm_scales(ctx, site, stats, given, statistic, a);
  else
    cpu::norm_scales(ctx, site, stats, given, statistic, a);
}

void norm_constant(Context& ctx, const Tensor& c_attn, const Tensor& scale, float factor, const Tensor& gamma, const Tensor& constant) {
  const Operation operation(ctx, "norm_constant", profile::Kind::norm, constant.device);
  if (ctx.device().is_cuda())
    cuda::norm_constant(ctx, c_attn, scale, factor, gamma, constant);
  else
    cpu::norm_constant(ctx, c_attn, scale, factor, gamma, constant);
}

void attention_constant(Context& ctx, const Tensor& wv, const Tensor& wo, std::int64_t heads, std::int64_t kv_heads, std::int64_t seq_len,
                        const Tensor& c_attn) {
  check(kv_heads > 0 && heads % kv_heads == 0 && wv.rows() % kv_heads == 0 && wo.cols() % heads == 0 &&
            wo.cols() / heads == wv.rows() / kv_heads && wo.rows() == wv.cols(),
        "[attention_constant] expected W_V [K·D, C] and W_O [C, H·D] with H={} and K={}, got {} and {}", heads, kv_heads, shape_string(wv),
        shape_string(wo));
  check(seq_len > 0, "[attention_constant] expected a sequence length above 0, got {}", seq_len);
  const Operation operation(ctx, "attention_constant", profile::Kind::norm, wv.device);
  if (ctx.device().is_cuda())
    cuda::attention_constant(ctx, wv, wo, heads, kv_heads, seq_len, c_attn);
  else
    cpu::attention_constant(ctx, wv, wo, heads, kv_heads, seq_len, c_attn);
}

void row_moments(Context& ctx, const Tensor& x, const Tensor& out) {
  check(out.dtype == DType::f32 && out.size() == 4, "[row_moments] expected a place for 4 fp32, got {}", shape_string(out));
  const Operation operation(ctx, "row_moments", profile::Kind::norm, x.device);
  if (ctx.device().is_cuda())
    cuda::row_moments(ctx, x, out);
  else
    cpu::row_moments(ctx, x, out);
}

}  // namespace bhyt

// Which instructions products and attention take on the CPU: those that the processor has. They are a context's
// (ctx.keep<Instructions>(), before a parallel loop, not inside), so that a test can have one that does as another processor.
#pragma once

#include "core/context.h"
#include "ops/attention/tile_bf16.h"
#include "ops/gemm/row_mmla.h"
#include "ops/gemm/row_tiles.h"

namespace bhyt::cpu {

struct Instructions {
  explicit Instructions(Context&) {}

  int lanes = row_lanes();               // of the vectors of products by row
  bool matrix_unit = has_matrix_unit();  // plain loops stand in for it where there is none
  bool mmla = true;                      // if there is any for the type of the weights

  bool mmla_for(DType weights) const { return mmla && has_mmla(weights); }
};

}  // namespace bhyt::cpu

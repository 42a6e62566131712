// What a build without CUDA says where NCCL is asked for.
#include "core/error.h"
#include "parallel/collectives.h"

namespace bhyt::parallel {

std::unique_ptr<Collectives> nccl_collectives(Context&, Group&, const CollectiveOptions&) {
  throw UsageError("NCCL needs a build with CUDA (make build CUDA=on)");
}

}  // namespace bhyt::parallel

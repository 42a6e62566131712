// Blocks of a cluster (Hopper), which meet and read each other's shared memory.
#pragma once

#include "core/cuda.cuh"

namespace bhyt::cuda {

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900  // the host compiles what calls them, too

__device__ __forceinline__ unsigned block_of_cluster() {
  unsigned rank;
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// When all threads of the cluster have arrived, what they wrote before can be seen.
__device__ __forceinline__ void arrive_in_cluster() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// From the shared memory of another block of the cluster, at this address of it.
__device__ __forceinline__ unsigned address_there(unsigned address, int block) {
  unsigned at;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(at) : "r"(address), "r"(block));
  return at;
}
__device__ __forceinline__ float read_there(unsigned address, int block) {
  float v;
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address_there(address, block)) : "memory");
  return v;
}
__device__ __forceinline__ float4 read4_there(unsigned address, int block) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(address_there(address, block))
               : "memory");
  return v;
}

#endif

}  // namespace bhyt::cuda

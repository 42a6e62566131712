// The part of NCCL's C interface that we use, which has not changed since 2.13: declared here, so that a build needs no NCCL. The library
// is loaded when it is asked for. Nor does it need CUDA: a stream is a pointer to what CUDA keeps for itself.
#pragma once

#include <cstddef>

struct CUstream_st;

namespace bhyt::nccl {

constexpr const char* kLibrary = "libnccl.so.2";

using Stream = CUstream_st*;  // cudaStream_t

struct Comm;  // ncclComm
struct UniqueId {
  char internal[128];
};
// Those that we name; the library may return others.
enum class Result : int { success = 0, in_progress = 7 };
enum class Type : int { uint8 = 1, float32 = 7, float64 = 8, bfloat16 = 9 };
enum class Op : int { sum = 0 };

struct Api {
  const char* (*get_error_string)(Result result);
  const char* (*get_last_error)(Comm* comm);
  Result (*get_unique_id)(UniqueId* id);
  Result (*comm_init_rank)(Comm** comm, int ranks, UniqueId id, int rank);
  Result (*comm_get_async_error)(Comm* comm, Result* error);
  Result (*comm_abort)(Comm* comm);
  Result (*comm_destroy)(Comm* comm);
  Result (*all_reduce)(const void* from, void* to, std::size_t count, Type type, Op op, Comm* comm, Stream stream);
  Result (*reduce_scatter)(const void* from, void* to, std::size_t count_of_part, Type type, Op op, Comm* comm, Stream stream);
  Result (*all_gather)(const void* from, void* to, std::size_t count_of_part, Type type, Comm* comm, Stream stream);
};

}  // namespace bhyt::nccl

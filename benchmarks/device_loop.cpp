// The kernels of examples/device/kernels/all_reduce.cu and ncclAllReduce, in loops.
#include <chrono>

#include "all_reduce.cu"

namespace {

template <typename Call>
double seconds(long n, const Call& call) {
  const auto start = std::chrono::steady_clock::now();
  for (long i = 0; i < n; ++i) call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

// The seconds of n calls of a kernel.
extern "C" double loop_kernel(void (*kernel)(void*), void* arguments, long n) {
  return seconds(n, [=] { kernel(arguments); });
}

// The seconds of n calls of ncclAllReduce on float32 with ncclSum on the calling thread.
extern "C" double loop_nccl(int (*all_reduce)(const void*, void*, size_t, int, int, void*, void*),
                            const void* send, void* recv, size_t count, void* comm, long n) {
  return seconds(n, [=] { all_reduce(send, recv, count, 7, 0, comm, nullptr); });
}

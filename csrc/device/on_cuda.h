// The CUDA side of <pynccl/device.h>, on NCCL's nccl_device.h. Grids and blocks have one dimension.
// on_host.h describes the functions; the comments here add what differs.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <nccl.h>

#if NCCL_VERSION_CODE < 22807
#error "pynccl/device.h needs the headers of NCCL 2.28.7 or later"
#endif

#ifdef __CUDACC_RTC__
// The parts of nccl_device.h that are used here: GIN's need Linux headers. NVRTC rejects host
// functions, some of which NCCL 2.28 declares.
#undef __host__
#define __host__
#include <nccl_device/utility.h>
#if NCCL_VERSION_CODE < 23102
// The general one has arrays without elements, which NVRTC rejects.
namespace nccl::utility {
template <>
__device__ inline char* loadConst(char* const* p) {
  return reinterpret_cast<char*>(__ldg(reinterpret_cast<const unsigned long long*>(p)));
}
template <>
__device__ inline uint32_t loadConst(const uint32_t* p) {
  return __ldg(p);
}
template <>
__device__ inline int loadConst(const int* p) {
  return __ldg(p);
}
}  // namespace nccl::utility
#endif
#include <nccl_device/coop.h>
#include <nccl_device/impl/comm__funcs.h>
#include <nccl_device/impl/core__funcs.h>
#include <nccl_device/impl/lsa_barrier__funcs.h>
#include <nccl_device/impl/ptr__funcs.h>
#else
#include <nccl_device.h>
#endif

#ifndef __CUDACC_RTC__
#include <stdexcept>
#include <string>
#endif

#define PYNCCL_DEVICE __device__

#define PYNCCL_KERNEL(name, Arguments, block, a)                                                \
  static __device__ void name##_body(const ::pynccl::device::Block& block, const Arguments& a); \
  extern "C" __global__ void name(const __grid_constant__ Arguments arguments) {                \
    name##_body(::pynccl::device::Block(), arguments);                                          \
  }                                                                                             \
  static __device__ void name##_body([[maybe_unused]] const ::pynccl::device::Block& block,     \
                                     const Arguments& a)

// The version of nccl_device.h that the module was compiled with, for cuModuleGetGlobal(). A
// launcher compares it with that of the device communicator.
extern "C" {
extern __device__ const int pynccl_device_version;
__device__ __attribute__((weak)) const int pynccl_device_version = NCCL_VERSION_CODE;
}

namespace pynccl::device {

inline constexpr int kVersion = NCCL_VERSION_CODE;

class Block {
 public:
  __device__ int index() const { return static_cast<int>(blockIdx.x); }
  __device__ int count() const { return static_cast<int>(gridDim.x); }
  __device__ int thread() const { return static_cast<int>(threadIdx.x); }
  __device__ int threads() const { return static_cast<int>(blockDim.x); }
  __device__ void sync() const { __syncthreads(); }
};

namespace detail {

template <typename T>
struct Same {
  using type = T;
};
template <typename T>
using Given = typename Same<T>::type;  // not deduced from this parameter

template <typename T>
using Word = cuda::atomic_ref<T, cuda::thread_scope_system>;

template <typename T>
inline constexpr bool is_word = T(-1) > T(0) && (sizeof(T) == 4 || sizeof(T) == 8);

template <typename T>
__device__ inline bool reached(const T* word, T least) {
  const T value = Word<T>(*const_cast<T*>(word)).load(cuda::memory_order_acquire);
  return value - least <= T(-1) / 2;
}

// The flag is that of NCCL's own kernels. Device communicators of programs do not have one so far
// (NCCL 2.28 to 2.32).
__device__ inline bool aborted(const ncclDevComm& comm) {
#if NCCL_VERSION_CODE >= 22907
  return comm.abortFlag != nullptr &&
         Word<uint32_t>(*comm.abortFlag).load(cuda::memory_order_relaxed) != 0;
#else
  return false;
#endif
}

__device__ inline uint64_t nanoseconds_now() {
  uint64_t time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

constexpr int kSpins = 1024;  // between two reads of the abort flag, which may be in host memory

template <typename T>
__device__ inline bool wait(const ncclDevComm& comm, const T* word, T least) {
  while (true) {
    for (int i = 0; i < kSpins; ++i) {
      if (reached(word, least)) return true;
    }
    if (aborted(comm)) return false;
  }
}

template <typename T>
__device__ inline bool wait_until(const ncclDevComm& comm, const T* word, T least, uint64_t end) {
  while (true) {
    for (int i = 0; i < kSpins; ++i) {
      if (reached(word, least)) return true;
      if (static_cast<int64_t>(nanoseconds_now() - end) >= 0) return false;
    }
    if (aborted(comm)) return false;
  }
}

}  // namespace detail

#if !defined(__CUDACC_RTC__) && NCCL_VERSION_CODE > 22907
// Checks whether a kernel that was compiled with this nccl_device.h can use the device
// communicator: for host code, before a launch. Before NCCL 2.30 device communicators have no
// version. Throws std::runtime_error that names both versions.
inline void check_version(const ncclDevComm& comm) {
  constexpr unsigned kMagic = 0xcafebeef;
  const auto version = static_cast<int>(comm.version);
  // 2.31 and 2.32 have the same layout.
  const auto layout = [](int v) { return v / 100 == 232 ? 231 : v / 100; };
  if (comm.magic == kMagic && layout(version) == layout(kVersion)) return;
  const std::string found = comm.magic == kMagic ? std::to_string(version) : "before 23000";
  throw std::runtime_error("the kernel was compiled with nccl_device.h of NCCL " +
                           std::to_string(kVersion) +
                           ", and the device communicator is one of NCCL " + found);
}
#endif

template <typename T = void>
__device__ inline T* local(ncclWindow_t window, size_t offset) {
  return static_cast<T*>(ncclGetLocalPointer(window, offset));
}

template <typename T = void>
__device__ inline T* lsa(ncclWindow_t window, size_t offset, int rank) {
  return static_cast<T*>(ncclGetLsaPointer(window, offset, rank));
}

template <typename T = void>
__device__ inline T* peer(ncclWindow_t window, size_t offset, int world_rank) {
  return static_cast<T*>(ncclGetPeerPointer(window, offset, world_rank));
}

// The multicast address, for multimem instructions: in CUDA only, and only if the device
// communicator was created with lsaMultimem.
template <typename T = void>
__device__ inline T* multimem(ncclWindow_t window, size_t offset, const ncclDevComm& comm) {
  return static_cast<T*>(ncclGetLsaMultimemPointer(window, offset, comm));
}

namespace detail {
template <typename Unit>
__device__ inline size_t copy_units(const Block& block, char* target, const char* source,
                                    size_t bytes) {
  const auto addresses = reinterpret_cast<uintptr_t>(target) | reinterpret_cast<uintptr_t>(source);
  if (addresses % sizeof(Unit) != 0) return 0;
  const size_t units = bytes / sizeof(Unit);
#pragma unroll 4
  for (size_t i = block.thread(); i < units; i += block.threads()) {
    reinterpret_cast<Unit*>(target)[i] = reinterpret_cast<const Unit*>(source)[i];
  }
  return units * sizeof(Unit);
}
}  // namespace detail

// All threads of the block copy: 16 bytes at a time if both addresses are multiples of 16, else 4
// or 1.
__device__ inline void copy(const Block& block, void* target, const void* source, size_t bytes) {
  auto* to = static_cast<char*>(target);
  const auto* from = static_cast<const char*>(source);
  size_t done = detail::copy_units<uint4>(block, to, from, bytes);
  done += detail::copy_units<uint32_t>(block, to + done, from + done, bytes - done);
  detail::copy_units<char>(block, to + done, from + done, bytes - done);
}

template <typename T>
__device__ inline void signal(const Block& block, const ncclDevComm&, int, T* word,
                              detail::Given<T> value) {
  static_assert(detail::is_word<T>, "a signal is a uint32_t or uint64_t");
  block.sync();
  if (block.thread() == 0) detail::Word<T>(*word).store(value, cuda::memory_order_release);
}

template <typename T>
__device__ inline void add_signal(const Block& block, const ncclDevComm&, int, T* word,
                                  detail::Given<T> value = 1) {
  static_assert(detail::is_word<T>, "a signal is a uint32_t or uint64_t");
  block.sync();
  if (block.thread() == 0) detail::Word<T>(*word).fetch_add(value, cuda::memory_order_release);
}

template <typename T>
[[nodiscard]] __device__ inline bool wait(const Block& block, const ncclDevComm& comm,
                                          const T* word, detail::Given<T> least) {
  static_assert(detail::is_word<T>, "a signal is a uint32_t or uint64_t");
  return __syncthreads_and(block.thread() != 0 || detail::wait(comm, word, least)) != 0;
}

template <typename T>
[[nodiscard]] __device__ inline bool wait_for(const Block& block, const ncclDevComm& comm,
                                              const T* word, detail::Given<T> least,
                                              uint64_t nanoseconds) {
  static_assert(detail::is_word<T>, "a signal is a uint32_t or uint64_t");
  const uint64_t end = detail::nanoseconds_now() + nanoseconds;
  return __syncthreads_and(block.thread() != 0 || detail::wait_until(comm, word, least, end)) != 0;
}

// wait() and sync() return when all ranks have arrived, and do not detect an abort of the
// communicator.
class LsaBarrier {
 public:
  __device__ LsaBarrier(const Block&, const ncclDevComm& comm, int index)
      : session_(ncclCoopCta(), comm, ncclTeamTagLsa(), static_cast<uint32_t>(index)) {}
  LsaBarrier(const LsaBarrier&) = delete;
  LsaBarrier& operator=(const LsaBarrier&) = delete;

  __device__ int phase() const { return static_cast<int>(session_.epoch % 2); }

  __device__ void arrive() { session_.arrive(ncclCoopCta(), cuda::memory_order_release); }

  [[nodiscard]] __device__ bool wait() {
    session_.wait(ncclCoopCta(), cuda::memory_order_acquire);
    return true;
  }

  [[nodiscard]] __device__ bool sync() {
    session_.sync(ncclCoopCta(), cuda::memory_order_acq_rel);
    return true;
  }

 private:
  ncclLsaBarrierSession<ncclCoopCta> session_;
};

namespace detail {

// The type in which elements are added. Conversions of half-width floats are explicit, because
// compiler options may forbid the implicit ones.
template <typename T>
struct Sum {
  using type = T;
  static __device__ T load(T value) { return value; }
  static __device__ T store(T value) { return value; }
};
template <>
struct Sum<__half> {
  using type = float;
  static __device__ float load(__half value) { return __half2float(value); }
  static __device__ __half store(float value) { return __float2half_rn(value); }
};
template <>
struct Sum<__nv_bfloat16> {
  using type = float;
  static __device__ float load(__nv_bfloat16 value) { return __bfloat162float(value); }
  static __device__ __nv_bfloat16 store(float value) { return __float2bfloat16_rn(value); }
};

// N elements that are loaded and stored together.
template <typename T, int N>
struct alignas(sizeof(T) * N) Elements {
  T values[N];
};

// Adds `count` groups of N elements.
template <int N, typename T>
__device__ inline void sum_of(const Block& block, int ranks, ncclWindow_t window, size_t offset,
                              T* out, size_t count) {
  using Group = Elements<T, N>;
  for (size_t i = block.thread(); i < count; i += block.threads()) {
    typename Sum<T>::type values[N];
    const Group first = lsa<const Group>(window, offset, 0)[i];
#pragma unroll
    for (int k = 0; k < N; ++k) values[k] = Sum<T>::load(first.values[k]);
#pragma unroll 4
    for (int r = 1; r < ranks; ++r) {
      const Group next = lsa<const Group>(window, offset, r)[i];
#pragma unroll
      for (int k = 0; k < N; ++k) values[k] += Sum<T>::load(next.values[k]);
    }
    Group result;
#pragma unroll
    for (int k = 0; k < N; ++k) result.values[k] = Sum<T>::store(values[k]);
    reinterpret_cast<Group*>(out)[i] = result;
  }
}

}  // namespace detail

// Processes 16 bytes at a time if `offset` and `out` are multiples of 16.
template <typename T>
__device__ inline void sum(const Block& block, const ncclDevComm& comm, ncclWindow_t window,
                           size_t offset, T* out, size_t count) {
  constexpr int kGroup = sizeof(T) < 16 ? static_cast<int>(16 / sizeof(T)) : 1;
  const bool aligned = (offset | reinterpret_cast<uintptr_t>(out)) % 16 == 0;
  const size_t groups = aligned ? count / kGroup : 0;
  const size_t done = groups * kGroup;
  detail::sum_of<kGroup>(block, comm.lsaSize, window, offset, out, groups);
  detail::sum_of<1>(block, comm.lsaSize, window, offset + done * sizeof(T), out + done,
                    count - done);
}

}  // namespace pynccl::device

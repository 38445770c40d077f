// The CPU side of <pynccl/device.h>: a block is one thread, and the memory of the ranks is mapped
// in this process.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <type_traits>

#include "../abi/nccl_device_types.h"
#include "host_services.h"

// Types of nccl.h or nccl_device.h, if the caller has included them, else pynccl's.
#ifndef NCCL_MAJOR
using ncclWindow_t = pynccl::abi::ncclWindow_vidmem*;
#endif
#ifndef _NCCL_DEVICE_COMM__TYPES_H_
using pynccl::abi::ncclDevComm;
using pynccl::abi::ncclTeam;
#else
static_assert(sizeof(ncclDevComm) == sizeof(pynccl::abi::ncclDevComm),
              "nccl_device.h has another layout of ncclDevComm than hostnccl");
#endif

// Precedes a function that kernels call.
#define PYNCCL_DEVICE

// Defines a kernel: PYNCCL_KERNEL(name, Arguments, block, a) { body }. The body gets the block as
// `block` and the arguments as `a`, a constant reference. An argument `comm` is compared with the
// version that the kernel was compiled for: std::runtime_error if they differ.
#define PYNCCL_KERNEL(name, Arguments, block, a)                                     \
  static void name##_body(const ::pynccl::device::Block& block, const Arguments& a); \
  extern "C" __attribute__((visibility("default"))) void name(void* arguments) {     \
    const Arguments& values = *static_cast<const Arguments*>(arguments);             \
    ::pynccl::device::detail::check_arguments(values);                               \
    name##_body(::pynccl::device::Block(), values);                                  \
  }                                                                                  \
  static void name##_body([[maybe_unused]] const ::pynccl::device::Block& block, const Arguments& a)

// The version of the layouts that this file was compiled with. A launcher compares it with that of
// the device communicator.
extern "C" {
extern const int pynccl_device_version __attribute__((weak, visibility("default")));
__attribute__((used)) const int pynccl_device_version = pynccl::abi::kDeviceVersion;
}

// Modules compiled with different versions may be in one process, and can be unloaded.
#pragma GCC visibility push(hidden)
namespace pynccl::device {

inline constexpr int kVersion = abi::kDeviceVersion;  // NCCL_VERSION_CODE of the layouts

// A block of cooperating threads: on CPUs one thread. A kernel has one block, unless a C++ launcher
// calls a function of its own with several.
class Block {
 public:
  explicit Block(int index = 0, int count = 1) : index_(index), count_(count) {}
  int index() const { return index_; }  // of this block in the grid
  int count() const { return count_; }  // blocks of the grid
  int thread() const { return 0; }      // of this thread in the block
  int threads() const { return 1; }     // threads of the block
  void sync() const {}                  // all threads of the block

 private:
  int index_;
  int count_;
};

namespace detail {

inline const abi::ncclDevComm& fields(const ncclDevComm& comm) {
  return reinterpret_cast<const abi::ncclDevComm&>(comm);
}

inline const abi::ncclWindow_vidmem& fields(ncclWindow_t window) {
  return *reinterpret_cast<const abi::ncclWindow_vidmem*>(window);
}

inline char* part(char* base, uint32_t stride4G, int rank) {
  return base + ((static_cast<size_t>(rank) * stride4G) << 32);
}

inline char* resources(const abi::ncclDevComm& comm, int rank) {
  return part(comm.resourceWindow_inlined.lsaFlatBase, comm.resourceWindow_inlined.stride4G, rank);
}

inline const HostServices& services(const abi::ncclDevComm& comm) {
  return *static_cast<const HostServices*>(comm.ginHandles[0]);
}

// Must follow a sequentially consistent store to `word`: either this sees a rank that goes to
// sleep, or that rank sees the store.
inline void wake_sleepers(const abi::ncclDevComm& comm, int rank, const void* word) {
  const auto* header = reinterpret_cast<const ResourceHeader*>(resources(comm, rank));
  if (header->sleepers.load(std::memory_order_seq_cst) != 0) [[unlikely]] {
    services(comm).wake(word);
  }
}

inline void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

template <typename T>
inline constexpr bool is_word = std::is_unsigned_v<T> && (sizeof(T) == 4 || sizeof(T) == 8);

// Correct even after a wrap-around.
template <typename T>
inline bool reached(const T* word, T least) {
  std::atomic_ref<T> value(*const_cast<T*>(word));
  return static_cast<std::make_signed_t<T>>(value.load(std::memory_order_acquire) - least) >= 0;
}

inline constexpr int kSpins = 64;               // between two yields
inline constexpr int kSpinsOversubscribed = 4;  // if a yield lets a peer run
inline constexpr auto kOtherThreadRan = std::chrono::microseconds(1);
inline constexpr auto kSpinTime = std::chrono::microseconds(200);
inline thread_local int spins = kSpins;

// Spins, and yields now and then, until the word reaches the value or the time has passed.
template <typename T>
[[gnu::noinline]] inline bool spin_until(const T* word, T least, std::chrono::nanoseconds time) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point began = Clock::now();
  for (Clock::time_point before = began; before - began < time;) {
    sched_yield();
    // A yield is short if no other thread is ready to run. After a long one this rank yields
    // sooner: the thread that ran was probably a peer.
    const Clock::time_point after = Clock::now();
    spins = after - before > kOtherThreadRan ? kSpinsOversubscribed : kSpins;
    for (int i = 0; i < spins; ++i) {
      if (reached(word, least)) return true;
      relax();
    }
    before = Clock::now();
  }
  return false;
}

template <typename T>
[[gnu::noinline]] inline bool wait_longer(const abi::ncclDevComm& comm, const T* word, T least) {
  if (spin_until(word, least, kSpinTime)) return true;
  const HostServices& host = services(comm);
  return host.wait(host.context, word, static_cast<int>(sizeof(T) * 8), least);
}

template <typename T>
inline bool wait(const abi::ncclDevComm& comm, const T* word, T least) {
  for (int i = 0; i < spins; ++i) {
    if (reached(word, least)) return true;
    relax();
  }
  return wait_longer(comm, word, least);
}

}  // namespace detail

// Checks whether a kernel with this version of the header can use the device communicator. Throws
// std::runtime_error that names both versions.
inline void check_version(const ncclDevComm& comm) {
  const abi::ncclDevComm& found = detail::fields(comm);
  if (found.magic != abi::kDeviceMagic) {
    throw std::runtime_error("pynccl/device.h for NCCL " + std::to_string(kVersion) +
                             " needs a device communicator of NCCL " +
                             std::to_string(abi::kDeviceLayoutSince) +
                             " or later; this one has no version, as before NCCL 23002");
  }
  const int version = static_cast<int>(found.version);
  if (version < abi::kDeviceLayoutSince || version / 100 > kVersion / 100) {
    throw std::runtime_error("the kernel was compiled for device communicators of NCCL " +
                             std::to_string(abi::kDeviceLayoutSince) + " to " +
                             std::to_string(kVersion) + ", and this one is of NCCL " +
                             std::to_string(version));
  }
  const auto* services = static_cast<const HostServices*>(found.ginHandles[0]);
  if (services == nullptr) {
    throw std::runtime_error("the device communicator is not one of hostnccl");
  }
  if (services->version != kHostServicesVersion) {
    throw std::runtime_error("the kernel was compiled for version " +
                             std::to_string(kHostServicesVersion) +
                             " of hostnccl's services, and the device communicator has version " +
                             std::to_string(services->version));
  }
}

namespace detail {
template <typename Arguments>
inline void check_arguments(const Arguments& arguments) {
  if constexpr (requires { check_version(arguments.comm); }) check_version(arguments.comm);
}
}  // namespace detail

// The address of `offset` bytes in this rank's memory of the window.
template <typename T = void>
inline T* local(ncclWindow_t window, size_t offset) {
  const abi::ncclWindow_vidmem& w = detail::fields(window);
  return reinterpret_cast<T*>(detail::part(w.lsaFlatBase, w.stride4G, w.lsaRank) + offset);
}

// The same in the memory of a rank of the LSA team.
template <typename T = void>
inline T* lsa(ncclWindow_t window, size_t offset, int rank) {
  const abi::ncclWindow_vidmem& w = detail::fields(window);
  return reinterpret_cast<T*>(detail::part(w.lsaFlatBase, w.stride4G, rank) + offset);
}

// The same in the memory of a rank of the communicator, which must be in the LSA team.
template <typename T = void>
inline T* peer(ncclWindow_t window, size_t offset, int world_rank) {
  const abi::ncclWindow_vidmem& w = detail::fields(window);
  return lsa<T>(window, offset, w.lsaRank + (world_rank - w.worldRank));
}

// Copies bytes between memory of any ranks; the ranges must not overlap.
inline void copy(const Block&, void* target, const void* source, size_t bytes) {
  std::memcpy(target, source, bytes);
}

// Sets a word in the memory of an LSA rank: uint32_t or uint64_t, aligned. Release: earlier writes
// of this block are visible to a rank that waits for the value.
template <typename T>
inline void signal(const Block&, const ncclDevComm& comm, int rank, T* word,
                   std::type_identity_t<T> value) {
  static_assert(detail::is_word<T>, "a signal is a uint32_t or uint64_t");
  std::atomic_ref<T>(*word).store(value, std::memory_order_seq_cst);
  detail::wake_sleepers(detail::fields(comm), rank, word);
}

// The same by an atomic addition: several blocks or ranks may signal in one word.
template <typename T>
inline void add_signal(const Block&, const ncclDevComm& comm, int rank, T* word,
                       std::type_identity_t<T> value = 1) {
  static_assert(detail::is_word<T>, "a signal is a uint32_t or uint64_t");
  std::atomic_ref<T>(*word).fetch_add(value, std::memory_order_seq_cst);
  detail::wake_sleepers(detail::fields(comm), rank, word);
}

// Waits until a word in this rank's memory is at least a value, even after a wrap-around. Acquire.
// Use it only for words that are set by signal() and add_signal(): a plain store does not wake the
// waiting rank.
template <typename T>
[[nodiscard]] inline bool wait(const Block&, const ncclDevComm& comm, const T* word,
                               std::type_identity_t<T> least) {
  static_assert(detail::is_word<T>, "a signal is a uint32_t or uint64_t");
  return detail::wait(detail::fields(comm), word, least);
}

// The same with a time limit in nanoseconds, after which it returns false. It does not sleep, and
// on CPUs it does not detect failures.
template <typename T>
[[nodiscard]] inline bool wait_for(const Block&, const ncclDevComm&, const T* word,
                                   std::type_identity_t<T> least, uint64_t nanoseconds) {
  static_assert(detail::is_word<T>, "a signal is a uint32_t or uint64_t");
  return detail::reached(word, least) ||
         detail::spin_until(word, least, std::chrono::nanoseconds(nanoseconds)) ||
         detail::reached(word, least);
}

namespace detail {
inline int checked_barrier(const abi::ncclDevComm& comm, int index) {
  const int barriers = comm.lsaBarrier.nBarriers;
  if (index >= 0 && index < barriers) [[likely]]
    return index;
  throw std::out_of_range("LsaBarrier: index " + std::to_string(index) +
                          " is out of range, the device communicator has " +
                          std::to_string(barriers) + " barriers; request more with lsa_barriers");
}
}  // namespace detail

// A barrier of the LSA team, like ncclLsaBarrierSession: arrive() releases, wait() acquires, and
// they must be called alternately. `index` numbers the barriers of the device communicator; blocks
// with the same index on all ranks meet. One session at a time uses a barrier. Throws
// std::out_of_range if the device communicator has no such barrier.
class LsaBarrier {
 public:
  LsaBarrier(const Block&, const ncclDevComm& comm, int index)
      : comm_(detail::fields(comm)),
        index_(detail::checked_barrier(comm_, index)),
        epoch_(own().load(std::memory_order_relaxed)) {}
  LsaBarrier(const LsaBarrier&) = delete;
  LsaBarrier& operator=(const LsaBarrier&) = delete;
  ~LsaBarrier() { own().store(epoch_, std::memory_order_relaxed); }

  // Alternates between 0 and 1 with each barrier; the same on all ranks.
  int phase() const { return static_cast<int>(epoch_ % 2); }

  void arrive() {
    for (int r = 0; r < comm_.lsaSize; ++r) {
      if (r == comm_.lsaRank) continue;
      std::atomic<uint32_t>& count = cell(r, comm_.lsaRank);
      count.store(epoch_ + 1, std::memory_order_seq_cst);
      detail::wake_sleepers(comm_, r, &count);
    }
  }

  [[nodiscard]] bool wait() {
    ++epoch_;
    for (int r = 0; r < comm_.lsaSize; ++r) {
      if (r == comm_.lsaRank) continue;
      const auto* count = reinterpret_cast<const uint32_t*>(&cell(comm_.lsaRank, r));
      if (!detail::wait(comm_, count, epoch_)) return false;
    }
    return true;
  }

  [[nodiscard]] bool sync() {
    arrive();
    return wait();
  }

 private:
  std::atomic<uint32_t>& cell(int owner, int p) const {
    char* cells = detail::resources(comm_, owner) + comm_.lsaBarrier.bufHandle * abi::kResourceUnit;
    const int number = index_ * (comm_.lsaSize + 1) + p;
    return reinterpret_cast<BarrierCell*>(cells)[number].count;
  }
  std::atomic<uint32_t>& own() const { return cell(comm_.lsaRank, comm_.lsaSize); }

  const abi::ncclDevComm& comm_;
  int index_;
  uint32_t epoch_;
};

namespace detail {

// The type in which elements are added.
template <typename T>
struct Sum {
  using type = T;
};
#ifdef __FLT16_MAX__
template <>
struct Sum<_Float16> {
  using type = float;
};
#endif

template <int N, typename T>
inline void sum_of(const T* const* sources, T* __restrict out, size_t count) {
  using Value = typename Sum<T>::type;
  const T* __restrict p[N];
  for (int r = 0; r < N; ++r) p[r] = sources[r];
  for (size_t i = 0; i < count; ++i) {
    Value value = static_cast<Value>(p[0][i]);
    for (int r = 1; r < N; ++r) value += static_cast<Value>(p[r][i]);
    out[i] = static_cast<T>(value);
  }
}

}  // namespace detail

// out[i] = sum over the LSA ranks, in their order, of element i at `offset` of their windows. `out`
// must not overlap any of them.
//   offset: bytes; count: elements. It does not synchronize: the peers' writes must be visible.
template <typename T>
inline void sum(const Block&, const ncclDevComm& comm, ncclWindow_t window, size_t offset, T* out,
                size_t count) {
  using Value = typename detail::Sum<T>::type;
  const int ranks = detail::fields(comm).lsaSize;
  if (ranks == 2 || ranks == 4) {
    const T* sources[4];
    for (int r = 0; r < ranks; ++r) sources[r] = lsa<const T>(window, offset, r);
    if (ranks == 2) return detail::sum_of<2>(sources, out, count);
    return detail::sum_of<4>(sources, out, count);
  }
  constexpr size_t kChunk = 1024 / sizeof(Value);  // stays in registers or in the L1 cache
  Value values[kChunk];
  for (size_t begin = 0; begin < count; begin += kChunk) {
    const size_t n = std::min(kChunk, count - begin);
    const T* source = lsa<const T>(window, offset, 0) + begin;
    for (size_t i = 0; i < n; ++i) values[i] = static_cast<Value>(source[i]);
    for (int r = 1; r < ranks; ++r) {
      source = lsa<const T>(window, offset, r) + begin;
      for (size_t i = 0; i < n; ++i) values[i] += static_cast<Value>(source[i]);
    }
    for (size_t i = 0; i < n; ++i) out[begin + i] = static_cast<T>(values[i]);
  }
}

}  // namespace pynccl::device
#pragma GCC visibility pop

// Device communicators whose ranks are threads of one process, as hostnccl lays them out: the parts
// of a window 4 GiB apart, resource memory with a ResourceHeader, and HostServices that sleep.
#pragma once

#include <linux/futex.h>
#include <pynccl/device.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

namespace fake {

namespace device = pynccl::device;
namespace abi = pynccl::abi;

inline void check(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "failed: %s\n", what);
  std::exit(1);
}

// One memory of each rank, all mapped at a constant distance.
class Parts {
 public:
  Parts(int ranks, size_t bytes) : length_(static_cast<size_t>(ranks) << 32) {
    void* range =
        mmap(nullptr, length_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    check(range != MAP_FAILED, "reserving addresses");
    base_ = static_cast<char*>(range);
    for (int r = 0; r < ranks; ++r) {
      const int file = memfd_create("part", 0);
      check(file >= 0 && ftruncate(file, static_cast<off_t>(bytes)) == 0, "memory of a rank");
      void* part = mmap(base_ + (static_cast<size_t>(r) << 32), bytes, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_FIXED, file, 0);
      check(part != MAP_FAILED, "mapping a rank's memory");
      close(file);
    }
  }
  Parts(const Parts&) = delete;
  Parts& operator=(const Parts&) = delete;
  ~Parts() { munmap(base_, length_); }
  char* base() const { return base_; }

 private:
  size_t length_;
  char* base_;
};

class World {
 public:
  static constexpr size_t kWindowBytes = 64 << 20;
  static constexpr int kBarriers = 4;

  explicit World(int ranks)
      : ranks_(ranks), window_(ranks, kWindowBytes), resources_(ranks, 1 << 20), members_(ranks) {
    for (int r = 0; r < ranks; ++r) {
      Member& m = members_[r];
      m.world = this;
      m.rank = r;
      m.services = {device::kHostServicesVersion, &m, wait, wake};
      m.window.lsaFlatBase = window_.base();
      m.window.lsaRank = m.window.worldRank = r;
      m.window.stride4G = 1;
      m.comm.magic = abi::kDeviceMagic;
      m.comm.version = abi::kDeviceVersion;
      m.comm.rank = m.comm.lsaRank = r;
      m.comm.nRanks = m.comm.lsaSize = ranks;
      m.comm.resourceWindow_inlined = {resources_.base(), 1, 0};
      m.comm.lsaBarrier = {1, kBarriers};  // behind the header
      m.comm.ginHandles[0] = &m.services;
    }
  }

  int ranks() const { return ranks_; }
  ncclDevComm& comm(int rank) { return members_[rank].comm; }
  ncclWindow_t window(int rank) { return &members_[rank].window; }
  template <typename T>
  T* memory(int rank, size_t offset) {
    return device::lsa<T>(window(0), offset, rank);
  }
  void abort() { aborted_ = true; }

  // Runs a function on every rank.
  template <typename Function>
  void run(Function function) {
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks_; ++r) threads.emplace_back([&, r] { function(r); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  struct Member {
    World* world = nullptr;
    int rank = 0;
    device::HostServices services{};
    abi::ncclWindow_vidmem window{};
    ncclDevComm comm{};
  };

  static uint64_t value(const void* word, int bits) {
    if (bits == 64) {
      return std::atomic_ref(*static_cast<uint64_t*>(const_cast<void*>(word))).load();
    }
    return std::atomic_ref(*static_cast<uint32_t*>(const_cast<void*>(word))).load();
  }

  static bool wait(void* context, const void* word, int bits, uint64_t least) {
    const auto& member = *static_cast<Member*>(context);
    auto* header = reinterpret_cast<device::ResourceHeader*>(
        member.world->resources_.base() + (static_cast<size_t>(member.rank) << 32));
    header->sleepers.fetch_add(1);
    const auto reached = [&](uint64_t seen) {
      return bits == 64 ? static_cast<int64_t>(seen - least) >= 0
                        : static_cast<int32_t>(static_cast<uint32_t>(seen - least)) >= 0;
    };
    bool woken = false;
    while (!member.world->aborted_) {
      const uint64_t seen = value(word, bits);
      if (reached(seen)) {
        woken = true;
        break;
      }
      const timespec time{2, 0};
      const long done =
          syscall(SYS_futex, word, FUTEX_WAIT, static_cast<uint32_t>(seen), &time, nullptr, 0);
      check(done == 0 || errno != ETIMEDOUT || !reached(value(word, bits)), "a lost wake-up");
    }
    header->sleepers.fetch_sub(1);
    return woken;
  }

  static void wake(const void* word) {
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, nullptr, nullptr, 0);
  }

  int ranks_;
  Parts window_;
  Parts resources_;
  std::vector<Member> members_;
  std::atomic<bool> aborted_{false};
};

}  // namespace fake

// Windows: memory that all ranks of a communicator have registered together. Each rank can address
// all of it: the parts of ranks in its own process at their own addresses, and the parts of all
// ranks in mappings of their memory files, at equal distances.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "abi/nccl_types.h"
#include "device/host_services.h"
#include "hostnccl/base/handle.h"
#include "hostnccl/segment/memory.h"

namespace hostnccl {

class Window {
 public:
  // The memory of one rank.
  struct Part {
    uint64_t address = 0;  // in that rank's process
    size_t bytes = 0;
    char* local = nullptr;                        // address in this process
    std::shared_ptr<Allocation> allocation = {};  // of a rank of this process
  };

  Window(abi::ncclComm_t owner, uint64_t number, int rank, bool symmetric, std::vector<Part> parts,
         FlatMemory flat)
      : owner_(owner),
        number_(number),
        rank_(rank),
        symmetric_(symmetric),
        parts_(std::move(parts)),
        flat_(std::move(flat)) {}

  abi::ncclComm_t owner() const { return owner_; }  // closes its windows before it ends
  // The same on all ranks, unique within the communicator.
  uint64_t number() const { return number_; }
  bool symmetric() const { return symmetric_; }  // registered with NCCL_WIN_COLL_SYMMETRIC
  const Part& part(int rank) const { return parts_[static_cast<size_t>(rank)]; }
  const Part& own() const { return part(rank_); }
  int rank() const { return rank_; }
  int nranks() const { return static_cast<int>(parts_.size()); }
  const FlatMemory& flat() const { return flat_; }
  // Leaves the memory mapped until the process ends.
  void abandon() { flat_.abandon(); }

  void begin_put() { puts_.fetch_add(1, std::memory_order_relaxed); }
  void end_put() { puts_.fetch_sub(1, std::memory_order_release); }
  // Whether a put of this rank is queued or in progress.
  bool has_puts() const { return puts_.load(std::memory_order_acquire) != 0; }

  // The address of a peer's memory in this process. Null if it is not completely in this window.
  char* local_address(int peer, uint64_t address, size_t bytes) const {
    const Part& peer_part = part(peer);
    const uint64_t offset = address - peer_part.address;
    return offset < peer_part.bytes && bytes <= peer_part.bytes - offset ? peer_part.local + offset
                                                                         : nullptr;
  }

 private:
  abi::ncclComm_t owner_;
  uint64_t number_;
  int rank_;
  bool symmetric_;
  std::vector<Part> parts_;
  FlatMemory flat_;
  std::atomic<int> puts_{0};
};

// The target of an ncclWindow_t.
template <>
struct SlotView<Window> {
  alignas(64) abi::ncclWindow_vidmem for_kernels;
  pynccl::device::HostServices services;  // of the device communicator with this resource window
};

// The window of a put that is queued or in progress. Keeps its memory mapped until the put is
// complete.
class PutTarget {
 public:
  explicit PutTarget(const Ref<Window>& window) : window_(window) { window_->begin_put(); }
  PutTarget(PutTarget&&) = default;
  PutTarget& operator=(PutTarget&&) = delete;
  ~PutTarget() {
    if (window_) window_->end_put();
  }

 private:
  Ref<Window> window_;
};

// A snapshot of the windows that one rank has open. Immutable once it is in use.
class WindowSet {
 public:
  // An empty set with memory for some windows: add() cannot fail.
  explicit WindowSet(size_t capacity) { windows_.reserve(capacity); }
  void add(const Ref<Window>& window) noexcept;

  const std::vector<Ref<Window>>& windows() const { return windows_; }
  // Equal on ranks with the same open windows. 0 if there are none.
  uint64_t identity() const { return identity_; }

  char* local_address(int peer, uint64_t address, size_t bytes) const;
  bool contains(const void* memory, size_t bytes, int rank) const {
    return bytes == 0 || local_address(rank, reinterpret_cast<uint64_t>(memory), bytes) != nullptr;
  }

 private:
  std::vector<Ref<Window>> windows_;
  uint64_t identity_ = 0;
};

// The open windows of one communicator on one rank. An operation uses the set that was open when it
// began.
class Windows {
 public:
  ~Windows() { close_all(); }

  // An empty set with memory for the open windows and one more, for add().
  std::shared_ptr<WindowSet> make_larger_set() const;
  void add(const Ref<Window>& window, std::shared_ptr<WindowSet> larger) noexcept;
  bool remove(const Ref<Window>& window);  // false if it is not in the set
  void close_all();
  // From now on, kernels may use the windows of this communicator, even while it is being aborted.
  void serve_kernels() { serves_kernels_.store(true, std::memory_order_relaxed); }
  void abandon_all();  // before close_all(): leaves windows mapped that kernels may still use

  bool any() const { return any_.load(std::memory_order_relaxed); }
  std::shared_ptr<const WindowSet> open_set() const;

  // The number of the next window. Ranks call it in the order of operations, so the numbers are
  // equal.
  uint64_t next_number() { return ++last_; }
  // Whether a window, or a symmetric one, has ever been registered.
  bool any_ever() const { return any_ever_.load(std::memory_order_relaxed); }
  bool any_symmetric_ever() const { return any_symmetric_ever_.load(std::memory_order_relaxed); }

 private:
  void replace(std::shared_ptr<const WindowSet> set);

  mutable std::mutex mutex_;
  std::shared_ptr<const WindowSet> set_ = std::make_shared<const WindowSet>(0);
  std::atomic<bool> any_{false};
  std::atomic<bool> any_ever_{false};
  std::atomic<bool> any_symmetric_ever_{false};
  std::atomic<bool> serves_kernels_{false};
  uint64_t last_ = 0;
};

abi::ncclWindow_t handle_of(const Ref<Window>& window);
Ref<Window> find_window(const void* handle);  // empty if it is not open

}  // namespace hostnccl

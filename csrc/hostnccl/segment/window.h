// A window: memory that each rank of a communicator has registered, together with the others. A
// rank reaches all of it in its own address space: its own part and those of ranks in its process
// where they are, the others where it has mapped their memory files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "hostnccl/base/handle.h"
#include "hostnccl/segment/memory.h"

namespace hostnccl {

class Window {
 public:
  // What one rank has brought in.
  struct Part {
    uint64_t address = 0;  // in its own process
    size_t bytes = 0;
    char* local = nullptr;  // in this one
    std::shared_ptr<Allocation> allocation = {};
    Mapping mapping = {};
  };

  Window(const void* owner, uint64_t number, int rank, std::vector<Part> parts)
      : owner_(owner), number_(number), rank_(rank), parts_(std::move(parts)) {}

  // An open window's communicator exists: it closes its windows when it ends.
  bool belongs_to(const void* comm) const { return owner_ == comm; }

  uint64_t number() const { return number_; }  // the same on all ranks, and no other window's
  const Part& part(int rank) const { return parts_[static_cast<size_t>(rank)]; }
  const Part& own() const { return part(rank_); }

  // Where a peer's memory is in this process, or null if not all of it is in this window.
  char* local_address(int peer, uint64_t address, size_t bytes) const {
    const Part& theirs = part(peer);
    const uint64_t offset = address - theirs.address;
    return offset < theirs.bytes && bytes <= theirs.bytes - offset ? theirs.local + offset
                                                                   : nullptr;
  }

 private:
  const void* owner_;
  uint64_t number_;
  int rank_;
  std::vector<Part> parts_;
};

// The windows that one rank has open at a moment.
class WindowSet {
 public:
  WindowSet() = default;
  explicit WindowSet(std::vector<Ref<Window>> windows);

  const std::vector<Ref<Window>>& windows() const { return windows_; }
  uint64_t identity() const { return identity_; }  // equal where the same are open; 0: none

  char* local_address(int peer, uint64_t address, size_t bytes) const;
  bool contains(const void* memory, size_t bytes, int rank) const {
    return bytes == 0 || local_address(rank, reinterpret_cast<uint64_t>(memory), bytes) != nullptr;
  }

 private:
  std::vector<Ref<Window>> windows_;
  uint64_t identity_ = 0;
};

// The windows of a communicator. An operation works on the set that was open when it began.
class Windows {
 public:
  Windows() = default;
  Windows(const Windows&) = delete;
  Windows& operator=(const Windows&) = delete;
  ~Windows() { close_all(); }

  void add(const Ref<Window>& window);
  bool remove(const Ref<Window>& window);  // false if it is not one of them
  void close_all();

  bool any() const { return any_.load(std::memory_order_relaxed); }
  std::shared_ptr<const WindowSet> open_set() const;

  uint64_t next_number() { return ++last_; }  // in a registration's turn
  bool any_ever() const {
    return any_ever_.load(std::memory_order_relaxed);
  }  // whether there was one

 private:
  void replace(std::vector<Ref<Window>> windows);

  mutable std::mutex mutex_;
  std::shared_ptr<const WindowSet> set_ = std::make_shared<const WindowSet>();
  std::atomic<bool> any_{false};
  std::atomic<bool> any_ever_{false};
  uint64_t last_ = 0;
};

HandleTable<Window>& windows();

}  // namespace hostnccl

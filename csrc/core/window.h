// Window: owns an ncclWindow_t, memory that all ranks of a communicator have registered so that
// each can write into the memory of the others.
//
// All ranks register and deregister in the same order: NCCL takes the offsets of windows from an
// allocator of each rank. So a window that is deleted without close() stays registered, with its
// memory, until its communicator is closed.
#pragma once

#include <memory>
#include <vector>

#include "core/communicator.h"

namespace pynccl {

class Window {
 public:
  // A pending window; make() registers it. memory owns the memory.
  Window(std::shared_ptr<Communicator> communicator, void* address, std::size_t nbytes, int flags,
         std::shared_ptr<void> memory);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // Registers windows of one library, of several communicators where one thread has several ranks.
  // The ranks of a blocking communicator first exchange where their memory begins and ends. Throws
  // std::invalid_argument on all of them where it begins at different places of its allocations:
  // NCCL addresses the memory of a peer by the place of the own memory.
  static void make(const std::vector<Window*>& windows);
  void cancel();  // it will not be registered, or is not any more
  // Waits for the work on the device. Closing twice is allowed.
  void close();

  // Throws std::invalid_argument where it is closed or not registered yet. Null where NCCL cannot
  // share the memory between these ranks.
  ncclWindow_t handle() const;
  void* user_pointer() const;
  // The size of a rank's memory in bytes; of a non-blocking communicator's window the own size.
  std::size_t nbytes_of(int rank) const;

  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }
  void* address() const { return address_; }
  std::size_t nbytes() const { return nbytes_; }
  int flags() const { return flags_; }
  bool is_open() const { return state_ == State::kOpen && !closed(); }
  bool closed() const { return state_ == State::kClosed || communicator_->closed(); }

 private:
  enum class State { kPending, kOpen, kClosed };

  void begin();
  void finish() { state_ = State::kOpen; }
  void check_exchanged() const;

  struct Place {
    std::uint64_t start;  // bytes from the beginning of its allocation
    std::uint64_t nbytes;
  };
  class Exchange;

  std::shared_ptr<Communicator> communicator_;
  void* address_;
  std::size_t nbytes_;
  int flags_;
  std::shared_ptr<void> memory_;
  State state_ = State::kPending;
  std::vector<Place> places_;  // by rank
  // NCCL writes it, for a non-blocking communicator after make() has returned. The communicator
  // owns the memory and outlives that write.
  ncclWindow_t* handle_;
};

}  // namespace pynccl

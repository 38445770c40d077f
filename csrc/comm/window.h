// Window: owns an ncclWindow_t, memory that all ranks of a communicator registered so that each can
// write into the memory of the others.
//
// Whenever a window is registered, the same windows must be open on all ranks, because NCCL takes
// the offsets of windows from an allocator on each rank. Therefore a window that is deleted without
// close() stays registered, with its memory, until its communicator is closed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace pynccl {

class Window {
 public:
  // A pending window, which register_all() registers. memory: the owner of the memory.
  Window(std::shared_ptr<Communicator> communicator, void* address, std::size_t nbytes, int flags,
         std::shared_ptr<void> memory);
  ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // Registers windows of one library, on several communicators if one thread has several ranks.
  //
  // The ranks of a blocking communicator first exchange descriptions of their memory. If one of
  // them cannot register it, or violates a rule that NCCL does not check, all of them throw
  // std::invalid_argument. In NCCL the other ranks would hang. The ranks of a non-blocking
  // communicator only check their own memory.
  static void register_all(const std::vector<Window*>& windows);
  void cancel();  // marks it as closed without deregistering it
  // Waits for work that uses the window. Closing twice is allowed.
  void close();

  // Throws std::invalid_argument if it is closed or not registered yet. Null if NCCL cannot share
  // the memory between these ranks.
  ncclWindow_t handle() const;
  void* user_pointer() const;
  // The size of a rank's memory in bytes; with a non-blocking communicator, the local size.
  std::size_t nbytes_of(int rank) const;
  // Throws std::invalid_argument if the range or the source of a put is invalid.
  void check_put(const Operation& put) const;
  void record_put(cudaStream_t stream) const;

  // The address at which this rank can load from and store to the memory of a rank of its LSA team,
  // or of any rank; null if it cannot. Throw std::invalid_argument if the rank or offset is out of
  // range.
  void* lsa_pointer(int lsa_rank, std::size_t offset) const;
  void* peer_pointer(int rank, std::size_t offset) const;
  // The address for multimem instructions on the memory of the LSA team; null if unsupported.
  void* multimem_pointer(std::size_t offset) const;

  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }
  void* address() const { return address_; }
  std::size_t nbytes() const { return nbytes_; }
  std::uint64_t number() const { return number_; }  // within its communicator; equal on all ranks
  bool is_open() const { return state_ == State::kOpen && !closed(); }
  bool closed() const { return state_ == State::kClosed || communicator_->closed(); }

 private:
  enum class State { kPending, kOpen, kClosed };

  // Why a rank cannot register its memory.
  enum class Problem : std::uint32_t { kNone, kEmpty, kMisaligned, kInUse, kNotShareable };
  static std::string text_of(Problem problem);

  // Describes the memory that a rank is about to register.
  struct Offer {
    std::uint64_t start;  // bytes from the beginning of its allocation
    std::uint64_t nbytes;
    std::uint64_t open_windows;  // Communicator::window_fingerprint()
    Problem problem;
    std::uint32_t one_sided;  // whether its driver supports one-sided operations
  };
  class Exchange;

  template <class Step>
  static void discard_on_failure(const std::vector<Window*>& windows, Step&& step);
  static void discard_healthy(const std::vector<Window*>& windows);
  static void exchange_offers(const std::vector<Window*>& windows);
  Offer make_offer();
  void check_offers() const;
  static void set_up_one_sided(const std::vector<Window*>& windows);
  void begin();
  void finish();
  void wait_for_use() const;
  void check_registered() const;
  void check_offset(int rank, std::size_t offset) const;

  std::shared_ptr<Communicator> communicator_;
  void* address_;
  std::size_t nbytes_;
  int flags_;
  std::shared_ptr<void> memory_;
  State state_ = State::kPending;
  bool holds_address_ = false;  // in the communicator's list
  std::uint64_t number_ = 0;
  std::vector<Offer> offers_;  // by rank; with a non-blocking communicator, only the local one
  mutable std::vector<cudaStream_t> put_streams_;
  // NCCL writes the handle here, for a non-blocking communicator after register_all() has returned.
  // The communicator owns the memory, because it outlives that write.
  ncclWindow_t* handle_;
};

}  // namespace pynccl

// Window: owns an ncclWindow_t, memory that all ranks of a communicator have registered so that
// each can write into the memory of the others.
//
// When a window is registered, the same windows are open on all ranks: NCCL takes the offsets of
// windows from an allocator of each rank. So a window that is deleted without close() stays
// registered, with its memory, until its communicator is closed.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace pynccl {

class Window : public PutTarget {
 public:
  // A pending window; make() registers it. memory owns the memory.
  Window(std::shared_ptr<Communicator> communicator, void* address, std::size_t nbytes, int flags,
         std::shared_ptr<void> memory);
  virtual ~Window();
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  // Registers windows of one library, of several communicators where one thread has several ranks.
  //
  // The ranks of a blocking communicator first exchange what they are about to register. Memory
  // that one of them cannot register, and what NCCL does not check, is std::invalid_argument on all
  // of them: in NCCL the others would wait for that rank. The ranks of a non-blocking communicator
  // check their own memory only.
  static void make(const std::vector<Window*>& windows);
  void cancel();  // it will not be registered, or is not any more
  // Waits for what uses it. Closing twice is allowed.
  void close();

  ncclWindow_t handle() const override;
  void* user_pointer() const;
  // The size of a rank's memory in bytes; of a non-blocking communicator's window the own size.
  std::size_t nbytes_of(int rank) const;
  // Throws std::invalid_argument where the range of a put or its source is wrong.
  void check_put(const Operation& put) const;
  void record_put(cudaStream_t stream) const override;

  // The address at which this rank can load from and store to the memory of a rank of its LSA team,
  // or of any rank; null where it cannot. Throws std::invalid_argument for a rank or an offset
  // outside.
  void* lsa_pointer(int lsa_rank, std::size_t offset) const;
  void* peer_pointer(int rank, std::size_t offset) const;
  // The address for multimem instructions on the memory of the LSA team; null where there is none.
  void* multimem_pointer(std::size_t offset) const;

  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }
  void* address() const { return address_; }
  std::size_t nbytes() const { return nbytes_; }
  std::uint64_t number() const override { return number_; }
  int flags() const { return flags_; }
  bool is_open() const { return state_ == State::kOpen && !closed(); }
  bool closed() const override { return state_ == State::kClosed || communicator_->closed(); }

 private:
  enum class State { kPending, kOpen, kClosed };

  // Why a rank cannot register its memory.
  enum class Problem : std::uint32_t { kNone, kEmpty, kMisaligned, kInUse, kNotShareable };
  static std::string text_of(Problem problem);

  // What a rank is about to register.
  struct Offer {
    std::uint64_t start;  // bytes from the beginning of its allocation
    std::uint64_t nbytes;
    std::uint64_t open_windows;  // Communicator::window_fingerprint()
    Problem problem;
    std::uint32_t one_sided;  // whether its driver has what one-sided operations need
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
  void check_offset(int rank, std::size_t offset) const;

  std::shared_ptr<Communicator> communicator_;
  void* address_;
  std::size_t nbytes_;
  int flags_;
  std::shared_ptr<void> memory_;
  State state_ = State::kPending;
  bool holds_address_ = false;  // in the communicator's list
  std::uint64_t number_ = 0;
  std::vector<Offer> offers_;  // by rank; the own one alone of a non-blocking communicator
  mutable std::vector<cudaStream_t> put_streams_;
  // NCCL writes it, for a non-blocking communicator after make() has returned. The communicator
  // owns the memory and outlives that write.
  ncclWindow_t* handle_;
};

}  // namespace pynccl

// Window: owns an ncclWindow_t, memory that all ranks of a communicator have registered so that
// each can write into the memory of the others. Registration is collective; deregistration is not.
#pragma once

#include <memory>

#include "core/communicator.h"

namespace pynccl {

class Window {
 public:
  // A pending window. begin() calls NCCL; finish() waits, unless the user asked for a non-blocking
  // communicator. Two steps, so that a group can register several on one thread.
  Window(std::shared_ptr<Communicator> communicator, void* address, std::size_t nbytes, int flags);
  ~Window();  // deregisters where the communicator is open; never throws
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  void begin();
  void finish();
  void cancel() { state_ = State::kClosed; }  // it will not be registered
  void close();                               // closing twice is allowed

  // Throws std::invalid_argument where it is closed or not registered yet. Null where NCCL cannot
  // share the memory between these ranks.
  ncclWindow_t handle() const;
  void* user_pointer() const;

  const std::shared_ptr<Communicator>& communicator() const { return communicator_; }
  void* address() const { return address_; }
  std::size_t nbytes() const { return nbytes_; }
  bool closed() const { return state_ == State::kClosed || communicator_->closed(); }

 private:
  enum class State { kPending, kOpen, kClosed };

  std::shared_ptr<Communicator> communicator_;
  void* address_;
  std::size_t nbytes_;
  int flags_;
  State state_ = State::kPending;
  // NCCL writes it, for a non-blocking communicator after begin() has returned. The communicator
  // owns the memory and outlives that write.
  ncclWindow_t* handle_;
};

}  // namespace pynccl

// Memory that the ranks of a communicator have registered together, so that each can write into the
// others': owns the ncclWindow_t. Registering takes all ranks; giving it up does not.
#pragma once

#include <memory>

#include "core/communicator.h"

namespace pynccl {

class Window {
 public:
  // One that is yet to be registered: begin() calls NCCL, finish() waits (unless the user asked for
  // a non-blocking communicator), so that a group can register several in one thread.
  Window(std::shared_ptr<Communicator> communicator, void* address, std::size_t nbytes, int flags);
  ~Window();  // silent; on a communicator that is open the memory is no longer a window
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;

  void begin();
  void finish();
  void give_up() { state_ = State::kClosed; }  // it will not be registered
  void close();                                // does nothing when closed already

  // Throws std::invalid_argument when it is closed, or not registered yet. Null where NCCL cannot
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
  // NCCL writes it, of a communicator that the user polls when it likes to: the communicator has
  // it, which outlives that moment.
  ncclWindow_t* handle_;
};

}  // namespace pynccl

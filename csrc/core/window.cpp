#include "core/window.h"

namespace pynccl {

Window::Window(std::shared_ptr<Communicator> communicator, void* address, std::size_t nbytes,
               int flags)
    : communicator_(std::move(communicator)),
      address_(address),
      nbytes_(nbytes),
      flags_(flags),
      handle_(communicator_->new_window()) {}

Window::~Window() {
  try {
    if (state_ == State::kOpen) close();
  } catch (...) {  // a failed communicator frees its windows itself
  }
}

void Window::begin() {
  const Communicator::Use comm(*communicator_);
  NCCL_CHECK(communicator_->library(), comm, communicator_->known_rank(), ncclCommWindowRegister,
             (comm, address_, nbytes_, handle_, flags_));
}

void Window::finish() { state_ = State::kOpen; }

void Window::close() {
  if (state_ == State::kPending)
    throw std::invalid_argument("window: it is still being registered; leave the group first");
  const bool open = !closed();
  state_ = State::kClosed;
  if (!open || !*handle_) return;
  const Communicator::Use comm(*communicator_);
  NCCL_CHECK(communicator_->library(), comm, communicator_->known_rank(), ncclCommWindowDeregister,
             (comm, *handle_));
}

ncclWindow_t Window::handle() const {
  if (state_ == State::kPending)
    throw std::invalid_argument("window: it is still being registered; leave the group first");
  if (closed()) throw std::invalid_argument("window: it is closed");
  return *handle_;
}

void* Window::user_pointer() const {
  const ncclWindow_t window = handle();
  const Communicator::Use comm(*communicator_);
  void* pointer = nullptr;
  NCCL_CHECK(communicator_->library(), comm, communicator_->known_rank(), ncclWinGetUserPtr,
             (comm, window, &pointer));
  return pointer;
}

}  // namespace pynccl

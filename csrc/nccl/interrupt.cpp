#include "nccl/interrupt.h"

#include <unistd.h>

#include <utility>

#include "common/thread_id.h"

namespace pynccl {

void Interrupt::install(void* set_check) {
  using SetCheck = void (*)(int (*)());
  if (set_check) reinterpret_cast<SetCheck>(set_check)(&Interrupt::check);
}

bool Interrupt::on_main_thread() { return check_ && common::thread_id() == getpid(); }

int Interrupt::check() {
  if (pending_ || !check_) return pending_;
  const bool before = std::exchange(in_handler_, true);
  pending_ = check_();
  in_handler_ = before;
  return pending_;
}

}  // namespace pynccl

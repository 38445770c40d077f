#include "core/interrupt.h"

#include <unistd.h>

#include "common/thread_id.h"
#include "core/library.h"

namespace pynccl {

void Interrupt::install(const Library& library) {
  using SetCheck = void (*)(int (*)());
  if (const auto set = reinterpret_cast<SetCheck>(library.symbol("hostSetInterruptCheck")))
    set(&Interrupt::check);
}

bool Interrupt::on_main_thread() { return check_ && common::thread_id() == getpid(); }

int Interrupt::check() {
  if (!pending_ && check_) pending_ = check_();
  return pending_;
}

}  // namespace pynccl

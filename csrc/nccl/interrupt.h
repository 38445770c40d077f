// Interruption of waits: while the main thread waits in a library that supports it
// (hostSetInterruptCheck), signal handlers run, and what they raise ends the wait.
#pragma once

namespace pynccl {

class Interrupt {
 public:
  // The check of the bindings: runs the handlers of signals, if this thread does that; whether one
  // of them has raised.
  static void set_check(bool (*check)()) { check_ = check; }
  static void install(void* set_check);  // hostSetInterruptCheck of a loaded library, or null

  // Whether the wait of this thread was interrupted, until reset().
  static bool pending() { return pending_; }
  static void reset() { pending_ = false; }

  // The thread that runs the handlers.
  static bool on_main_thread();

  // For waits outside the library: runs the handlers. Whether one of them has raised.
  static bool poll() { return check() != 0; }

 private:
  static int check();

  inline static bool (*check_)() = nullptr;
  inline static thread_local bool pending_ = false;
};

}  // namespace pynccl

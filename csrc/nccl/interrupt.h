// Interrupt: lets signal handlers run while the main thread waits, in a library that supports it
// (hostSetInterruptCheck) or outside of one. An exception of a handler ends the wait.
#pragma once

namespace pynccl {

class Interrupt {
 public:
  // Sets the bindings' check. It runs pending signal handlers, if this thread runs them, and
  // returns whether one of them raised.
  static void set_check(bool (*check)()) { check_ = check; }
  static void install(void* set_check);  // hostSetInterruptCheck of a loaded library, or null

  // Whether a wait of this thread was interrupted since the last reset().
  static bool pending() { return pending_; }
  static void reset() { pending_ = false; }

  // Whether this is the thread that runs signal handlers.
  static bool on_main_thread();

  // Whether this thread runs a signal handler within a wait, which ends after the handler.
  static bool in_handler() { return in_handler_; }

  // For waits outside the library: runs pending handlers and returns whether one of them raised.
  static bool poll() { return check() != 0; }

 private:
  static int check();

  inline static bool (*check_)() = nullptr;
  inline static thread_local bool pending_ = false;
  inline static thread_local bool in_handler_ = false;
};

}  // namespace pynccl

// Threads of the engine. They block all signals except those of their own faults, so that signals
// are delivered to the threads of the user.
#pragma once

#include <signal.h>

#include <thread>
#include <utility>

namespace hostnccl {

// Blocks signals in this thread for its lifetime.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS}) {
      sigdelset(&all, fault);
    }
    pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

template <typename Body>
std::thread make_thread(Body&& body) {
  const SignalsBlocked blocked;  // inherited by the new thread
  return std::thread(std::forward<Body>(body));
}

template <typename Body>
void start_thread(Body&& body) {
  make_thread(std::forward<Body>(body)).detach();
}

}  // namespace hostnccl

// Threads of the engine. They block all signals except those of their own faults, because signals
// belong to the user's threads.
#pragma once

#include <thread>
#include <utility>

#include "common/signals_blocked.h"

namespace hostnccl {

template <typename Body>
std::thread make_thread(Body&& body) {
  const common::SignalsBlocked blocked;  // inherited by the new thread
  return std::thread(std::forward<Body>(body));
}

template <typename Body>
void start_thread(Body&& body) {
  make_thread(std::forward<Body>(body)).detach();
}

}  // namespace hostnccl

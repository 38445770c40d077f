// Threads of the engine, and objects that outlive them.
#pragma once

#include <thread>
#include <utility>

#include "common/signals_blocked.h"

namespace hostnccl {

// The only object of a type. Never destroyed: threads may outlive main().
template <typename T>
T& immortal() {
  static T& object = *new T;
  return object;
}

// A thread that blocks all signals except those of its own faults, because signals belong to the
// user's threads.
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

// Task: one running operation as a coroutine. co_await until(...) suspends it until the flag has
// reached its target. ProgressEngine then resumes it.
#pragma once

#include <coroutine>
#include <cstddef>
#include <exception>
#include <utility>

#include "hostnccl/base/flag.h"

namespace hostnccl {

// Memory of coroutine frames, from free lists of the calling thread: in steady state an operation
// allocates nothing.
void* allocate_frame(size_t bytes);
void free_frame(void* frame, size_t bytes) noexcept;

// The condition that a suspended task waits for, and the rank that signals the flag.
struct Blocked {
  WaitCondition condition;
  int owner = 0;
};

class Task {
 public:
  struct promise_type {
    Blocked blocked;
    std::exception_ptr error;

    Task get_return_object() { return Task(Handle::from_promise(*this)); }
    std::suspend_always initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { error = std::current_exception(); }
    static void* operator new(size_t bytes) { return allocate_frame(bytes); }
    static void operator delete(void* frame, size_t bytes) { free_frame(frame, bytes); }
  };
  using Handle = std::coroutine_handle<promise_type>;

  Task() = default;
  explicit Task(Handle handle) : handle_(handle) {}
  Task(Task&& other) noexcept : handle_(std::exchange(other.handle_, {})) {}
  Task& operator=(Task&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Task() { reset(); }

  explicit operator bool() const { return static_cast<bool>(handle_); }

  void reset() {
    if (handle_) std::exchange(handle_, {}).destroy();
  }

  // Continues the coroutine. Returns whether it has finished, or rethrows its exception.
  bool resume() {
    handle_.resume();
    if (!handle_.done()) return false;
    if (handle_.promise().error) std::rethrow_exception(handle_.promise().error);
    return true;
  }

  const Blocked& blocked() const { return handle_.promise().blocked; }

 private:
  Handle handle_;
};

struct Until {
  Blocked blocked;
  bool await_ready() const { return blocked.condition.met(); }
  void await_suspend(Task::Handle task) const { task.promise().blocked = blocked; }
  void await_resume() const {}
};

inline Until until(Flag& flag, uint32_t target, int owner) { return {{{&flag, target}, owner}}; }

}  // namespace hostnccl

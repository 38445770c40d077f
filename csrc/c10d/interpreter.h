// The Python interpreter: the GIL, signals, forks, finalization, and objects in C++ threads.
#pragma once

#include <cxxabi.h>
#include <pthread.h>
#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>

namespace pynccl::dist {

// A Python object that any thread can hold and release.
using Held = std::shared_ptr<py::object>;
Held hold(py::object object);

// Calls body. If Python ends this thread by pthread_exit during finalization, the thread sleeps
// instead, because it must not unwind through destructors.
template <class Body>
auto or_sleep(Body&& body) {
  try {
    return body();
  } catch (const ::abi::__forced_unwind&) {
    while (true) pause();
  }
}

// Calls body with the GIL, from any thread.
template <class Body>
auto with_gil(Body&& body) {
  return or_sleep([&] {
    const py::gil_scoped_acquire gil;
    return or_sleep(body);
  });
}

// Releases the GIL for a scope, if the thread holds it.
class GilReleased {
 public:
  GilReleased()
      : state_(Py_IsInitialized() && PyGILState_Check() ? PyEval_SaveThread() : nullptr) {}
  ~GilReleased() {
    if (state_) or_sleep([this] { PyEval_RestoreThread(state_); });
  }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* const state_;
};

// Calls body without the GIL, whether or not the caller holds it.
template <class Body>
void without_gil(Body&& body) {
  const GilReleased released;
  body();
}

// Finalization of the interpreter, during which only daemon threads and the main thread run Python.
// Before 3.14, Python ends a daemon thread that acquires the GIL by pthread_exit, which unwinds
// through the destructors of torch's bindings and aborts the process.
class Ending {
 public:
  // Called in the main thread, by an atexit function.
  static void begin() { main_.store(std::this_thread::get_id()); }
  static bool begun() { return main_.load() != std::thread::id(); }
  // Marks this thread as one of the backend's, which end in time.
  static void exempt_thread() { exempt_ = true; }

  // Guards a call of the backend without the GIL: a thread that would return to Python during
  // finalization sleeps until the process has ended.
  class Call {
   public:
    Call() = default;
    ~Call() {
      if (begun()) [[unlikely]]
        stay();
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;
  };

 private:
  static void stay();

  inline static std::atomic<std::thread::id> main_{};
  inline static thread_local bool exempt_ = false;
};

// Counts the forks between the process that loaded the backend and this one.
class Forks {
 public:
  static unsigned count() { return count_.load(std::memory_order_relaxed); }

 private:
  inline static std::atomic<unsigned> count_ = 0;
  inline static const int handler_ =
      pthread_atfork(nullptr, nullptr, [] { count_.fetch_add(1, std::memory_order_relaxed); });
};

// Runs pending signal handlers, if this is the main thread, and throws their exceptions. Call
// without the GIL and without locks.
void run_signal_handlers();

inline constexpr std::chrono::milliseconds kBetweenSignals{50};

// The same for polling loops, at most every 50 ms.
class SignalPoll {
 public:
  void look() {
    const auto now = std::chrono::steady_clock::now();
    if (now < next_) return;
    run_signal_handlers();
    next_ = now + kBetweenSignals;
  }

 private:
  std::chrono::steady_clock::time_point next_ = std::chrono::steady_clock::now() + kBetweenSignals;
};

// Waits until done() is true; returns false if the time (if any) expires first. The main thread
// runs signal handlers while waiting, without the lock, and throws their exceptions.
template <class Done>
bool wait_with_signals(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
                       std::optional<std::chrono::steady_clock::time_point> until, Done&& done) {
  while (!done()) {
    auto next = std::chrono::steady_clock::now() + kBetweenSignals;
    if (until) next = std::min(next, *until);
    if (changed.wait_until(lock, next, done)) return true;
    if (until && std::chrono::steady_clock::now() >= *until) return false;
    struct Unlocked {
      explicit Unlocked(std::unique_lock<std::mutex>& given) : lock(given) { lock.unlock(); }
      ~Unlocked() { lock.lock(); }
      Unlocked(const Unlocked&) = delete;
      Unlocked& operator=(const Unlocked&) = delete;
      std::unique_lock<std::mutex>& lock;
    };
    const Unlocked unlocked(lock);
    run_signal_handlers();
  }
  return true;
}

// Throws DistBackendError.
[[noreturn]] void throw_backend_error(const std::string& text);
// Throws the Python exception being handled: a ValueError or TypeError as such, another Exception
// as DistBackendError with its text, and the rest, such as KeyboardInterrupt, unchanged. Requires
// the GIL.
[[noreturn]] void throw_python_error(const py::error_already_set& error);

// Calls body with the GIL, from any thread, and converts its exceptions by throw_python_error().
template <class Body>
auto in_python(Body&& body) {
  return with_gil([&] {
    try {
      return body();
    } catch (py::error_already_set& error) {
      throw_python_error(error);
    }
  });
}

}  // namespace pynccl::dist

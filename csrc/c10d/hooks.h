// Hooks: torch's callbacks for completed operations and failed communicators. One thread per
// process polls for what no user call detects: completion of GPU operations, and communicators that
// failed because of other ranks.
#pragma once

#include <c10/core/Event.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

namespace pynccl::dist {

class Connection;

class Hooks : public std::enable_shared_from_this<Hooks> {
 public:
  // key: the key of the Work; milliseconds: the duration of the operation, if measured.
  using Completed = std::function<void(std::uint64_t key, std::optional<float> milliseconds)>;
  using Failed = std::function<void()>;

  // id: chosen by the caller, for remove_...().
  void add_completed(std::int64_t id, Completed hook);
  void add_failed(std::int64_t id, Failed hook);
  void remove_completed(std::int64_t id);
  void remove_failed(std::int64_t id);

  // Whether any hook receives completions.
  bool report_completions() const { return completions_.load(std::memory_order_relaxed); }

  void completed(std::uint64_t key, std::optional<float> milliseconds = std::nullopt) noexcept;
  void failed() noexcept;

  // Reports the operation as complete when the event is.
  void complete_at(c10::Event event, std::uint64_t key, std::shared_ptr<Connection> connection);
  // Makes the thread check whether the communicator has failed.
  void watch(std::weak_ptr<Connection> connection);
  // Called by that thread.
  void look() noexcept;

 private:
  struct Pending {
    c10::Event event;
    std::uint64_t key;
    std::shared_ptr<Connection> connection;
  };

  void start_thread();

  bool started_ = false;
  std::atomic<bool> completions_ = false;
  // Guards the following. Hooks must not be called, copied or destroyed under it, because a Python
  // function then acquires the GIL.
  std::mutex mutex_;
  std::map<std::int64_t, std::shared_ptr<const Completed>> completed_;
  std::map<std::int64_t, std::shared_ptr<const Failed>> failed_;
  std::vector<Pending> pending_;
  std::vector<std::weak_ptr<Connection>> watched_;
};

// Returns a number that is unique to a Work in the process.
std::uint64_t new_completion_key();

}  // namespace pynccl::dist

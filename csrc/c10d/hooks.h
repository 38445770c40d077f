// Hooks: what torch calls when an operation is complete, and when a communicator has failed. A
// thread of the process looks for both where no call of the user sees them: operations of GPUs, and
// communicators that other ranks made fail.
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
  // key: that of the Work; milliseconds: how long the operation ran, where it was measured.
  using Completed = std::function<void(std::uint64_t key, std::optional<float> milliseconds)>;
  using Failed = std::function<void()>;

  // id: the caller's, for remove_...().
  void add_completed(std::int64_t id, Completed hook);
  void add_failed(std::int64_t id, Failed hook);
  void remove_completed(std::int64_t id);
  void remove_failed(std::int64_t id);

  // Whether completions are reported to anybody.
  bool report_completions() const { return completions_.load(std::memory_order_relaxed); }

  void completed(std::uint64_t key, std::optional<float> milliseconds = std::nullopt) noexcept;
  void failed() noexcept;

  // The operation of the connection is complete when the event is.
  void complete_at(c10::Event event, std::uint64_t key, std::shared_ptr<Connection> connection);
  // The thread looks whether the communicator has failed.
  void watch(std::weak_ptr<Connection> connection);
  // For that thread.
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
  // Of the following. No hook is called, copied or destroyed under it: a function of Python takes
  // the GIL then.
  std::mutex mutex_;
  std::map<std::int64_t, std::shared_ptr<const Completed>> completed_;
  std::map<std::int64_t, std::shared_ptr<const Failed>> failed_;
  std::vector<Pending> pending_;
  std::vector<std::weak_ptr<Connection>> watched_;
};

// A number that no other Work of the process has.
std::uint64_t new_completion_key();

}  // namespace pynccl::dist

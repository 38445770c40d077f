#include "hooks.h"

#include <c10/util/Exception.h>

#include <chrono>
#include <condition_variable>
#include <thread>

#include "connection.h"

namespace pynccl::dist {
namespace {

// The polling thread. It ends with the process.
class Watch {
 public:
  static Watch& get() {
    static Watch watch;
    return watch;
  }

  ~Watch() {
    {
      const std::scoped_lock lock(state_->mutex);
      state_->stopped = true;
    }
    state_->changed.notify_all();
    if (!thread_.joinable()) return;
    std::unique_lock lock(state_->mutex);
    // A hook may wait for the GIL forever.
    const bool left = state_->changed.wait_for(lock, kStop, [this] { return state_->left; });
    lock.unlock();
    if (left)
      thread_.join();
    else
      thread_.detach();
  }

  void add(std::weak_ptr<Hooks> hooks) {
    const std::scoped_lock lock(state_->mutex);
    state_->watched.push_back(std::move(hooks));
    if (!thread_.joinable()) thread_ = std::thread([state = state_] { run(*state); });
  }

 private:
  static constexpr std::chrono::milliseconds kPause{50}, kStop{500};

  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<std::weak_ptr<Hooks>> watched;
    bool stopped = false;
    bool left = false;
  };

  static void run(State& state) {
    std::unique_lock lock(state.mutex);
    while (!state.changed.wait_for(lock, kPause, [&] { return state.stopped; })) {
      std::erase_if(state.watched, [](const auto& hooks) { return hooks.expired(); });
      const auto watched = state.watched;
      lock.unlock();
      for (const auto& each : watched)
        if (const auto hooks = each.lock()) hooks->look();
      lock.lock();
    }
    state.left = true;
    state.changed.notify_all();
  }

  const std::shared_ptr<State> state_ = std::make_shared<State>();
  std::thread thread_;
};

template <class Hook, class... Arguments>
void call_all(const std::map<std::int64_t, std::shared_ptr<const Hook>>& hooks,
              const Arguments&... arguments) noexcept {
  for (const auto& [id, hook] : hooks) {
    try {
      or_sleep([&] { (*hook)(arguments...); });
    } catch (const std::exception& error) {
      TORCH_WARN("pynccl: a hook failed: ", error.what());
    }
  }
}

}  // namespace

std::uint64_t new_completion_key() {
  static std::atomic<std::uint64_t> last = 0;
  return ++last;
}

void Hooks::add_completed(std::int64_t id, Completed hook) {
  auto added = std::make_shared<const Completed>(std::move(hook));
  {
    const std::scoped_lock lock(mutex_);
    completed_[id].swap(added);
    completions_ = true;
  }
  start_thread();
}

void Hooks::add_failed(std::int64_t id, Failed hook) {
  auto added = std::make_shared<const Failed>(std::move(hook));
  {
    const std::scoped_lock lock(mutex_);
    failed_[id].swap(added);
  }
  start_thread();
}

void Hooks::remove_completed(std::int64_t id) {
  decltype(completed_)::node_type removed;  // destroyed without the lock
  const std::scoped_lock lock(mutex_);
  removed = completed_.extract(id);
  completions_ = !completed_.empty();
}

void Hooks::remove_failed(std::int64_t id) {
  decltype(failed_)::node_type removed;  // destroyed without the lock
  const std::scoped_lock lock(mutex_);
  removed = failed_.extract(id);
}

void Hooks::completed(std::uint64_t key, std::optional<float> milliseconds) noexcept {
  if (!report_completions()) return;
  std::unique_lock lock(mutex_);
  const auto hooks = completed_;
  lock.unlock();
  call_all(hooks, key, milliseconds);
}

void Hooks::failed() noexcept {
  std::unique_lock lock(mutex_);
  const auto hooks = failed_;
  lock.unlock();
  call_all(hooks);
}

void Hooks::complete_at(c10::Event event, std::uint64_t key,
                        std::shared_ptr<Connection> connection) {
  const std::scoped_lock lock(mutex_);
  pending_.push_back({std::move(event), key, std::move(connection)});
}

void Hooks::watch(std::weak_ptr<Connection> connection) {
  const std::scoped_lock lock(mutex_);
  watched_.push_back(std::move(connection));
}

void Hooks::look() noexcept {
  std::unique_lock lock(mutex_);
  std::vector<Pending> pending = std::exchange(pending_, {});
  const auto watched = watched_;
  lock.unlock();
  // The kernels of a failed communicator also end.
  const auto is_over = [this](Pending& operation) {
    try {
      const Connection::RelaxedCapture relaxed(*operation.connection);
      if (!operation.event.query()) return false;
      if (operation.connection->failure().empty()) completed(operation.key);
    } catch (const std::exception&) {  // the device has failed: the operation never completes
    }
    return true;
  };
  std::erase_if(pending, is_over);
  for (const auto& each : watched)
    if (const auto connection = each.lock(); connection && connection->take_failure()) failed();
  lock.lock();
  pending_.insert(pending_.begin(), std::make_move_iterator(pending.begin()),
                  std::make_move_iterator(pending.end()));
  std::erase_if(watched_, [](const auto& connection) { return connection.expired(); });
}

void Hooks::start_thread() {
  static std::mutex starting;
  const std::scoped_lock lock(starting);
  if (started_) return;
  started_ = true;
  Watch::get().add(weak_from_this());
}

}  // namespace pynccl::dist

// The time limit of the creation of communicators.
#include <algorithm>

#include "comm/communicator.h"
#include "nccl/device.h"
#include "nccl/run_within.h"

namespace pynccl {
namespace {

// The time limit of what this thread makes, in the libraries that have one: they end the creation
// themselves. From construction to destruction.
class LibraryLimit {
 public:
  LibraryLimit(const std::vector<std::shared_ptr<Communicator>>& made, double seconds)
      : made_(made) {
    set(seconds);
  }
  LibraryLimit(const LibraryLimit&) = delete;
  LibraryLimit& operator=(const LibraryLimit&) = delete;
  ~LibraryLimit() { set(-1); }

  static bool supported(const Library& library) { return function_of(library) != nullptr; }

 private:
  using SetInitTimeout = void (*)(double seconds);

  static SetInitTimeout function_of(const Library& library) {
    return reinterpret_cast<SetInitTimeout>(library.symbol("hostSetInitTimeout"));
  }

  void set(double seconds) const {
    for (const auto& one : made_)
      if (const auto function = function_of(one->library())) function(seconds);
  }

  const std::vector<std::shared_ptr<Communicator>>& made_;
};

}  // namespace

void Communicator::make(const std::vector<std::shared_ptr<Communicator>>& made,
                        const std::function<void()>& steps) {
  RawGroup::check_none();
  const Communicator* first = nullptr;  // with the shortest init_timeout
  for (const auto& one : made) {
    const auto& timeout = one->options_.init_timeout;
    if (timeout && (!first || timeout < first->options_.init_timeout)) first = one.get();
  }
  if (!first) return steps();
  const double seconds = *first->options_.init_timeout;
  const auto limited = [made, seconds, steps] {
    const LibraryLimit limit(made, seconds);
    steps();
  };
  if (std::ranges::all_of(made,
                          [](const auto& one) { return LibraryLimit::supported(one->library()); }))
    return limited();
  for (const auto& one : made) one->choose_device();
  const auto free = [made] {
    for (const auto& one : made) one->free_abandoned();
  };
  if (run_within(seconds, limited, free)) return;
  for (const auto& one : made) one->abandon();
  first->throw_late(seconds, first->creator_);
}

// The other thread of run_within() has no current device.
void Communicator::choose_device() {
  options_.device = DeviceScope(*library_, options_.device).device();
}

void Communicator::abandon() {
  {
    // The call of NCCL that continues may make the parent expire: its close() need not say so.
    const std::lock_guard lock(mutex_);
    if (const auto parent = made_from_.lock()) parent->error_thrown_ = true;
  }
  State state = state_.load();
  while (state < State::kClosed && !state_.compare_exchange_weak(state, State::kAbandoned)) {
  }
}

void Communicator::free_abandoned() {
  State abandoned = State::kAbandoned;
  state_.compare_exchange_strong(abandoned, State::kMaking);
  discard();
}

}  // namespace pynccl

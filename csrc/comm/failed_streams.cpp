#include "comm/failed_streams.h"

#include <algorithm>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "nccl/clock.h"

namespace pynccl {
namespace {

constexpr std::int64_t kNever = INT64_MAX;
constexpr std::size_t kMaxDestroyed = 256;  // failures of destroyed streams, kept for their events

struct FailedStream {
  CUstream stream;
  std::int64_t since;
  FailedStreams::Throw failure;
  std::int64_t thrown = kNever;  // when a wait for an event or the stream first threw it
  std::int64_t thrown_by_stream = kNever;
  bool destroyed = false;

  bool covers(std::int64_t recorded_at) const {
    return since <= recorded_at && recorded_at <= thrown;
  }
};

// One stream has waited for events of another. recorded_at is the time of the last one.
struct StreamWait {
  CUstream waiting;
  CUstream recorded_on;
  std::int64_t recorded_at;
};

std::mutex failed_mutex;  // guards the following

std::vector<FailedStream>& failed_streams() {
  static auto& list = *new std::vector<FailedStream>;
  return list;
}

std::vector<StreamWait>& stream_waits() {
  static auto& list = *new std::vector<StreamWait>;
  return list;
}

// Adds a failure to a stream, or extends one that has not been thrown yet. Returns whether the
// stream's failed work changed.
bool mark_failed(CUstream stream, std::int64_t since, const FailedStreams::Throw& failure) {
  for (FailedStream& one : failed_streams()) {
    if (one.stream != stream || one.destroyed || one.thrown != kNever) continue;
    const bool longer = since < one.since;
    one.since = std::min(one.since, since);
    return longer;
  }
  failed_streams().push_back({stream, since, failure});
  return true;
}

// Throws the last failure whose stream throws_now(), if any, after the lock is released.
template <class Predicate>
void throw_failure(const std::string& cause, Predicate&& throws_now) {
  FailedStreams::Throw failure;
  {
    const std::lock_guard lock(failed_mutex);
    for (FailedStream& one : failed_streams()) {
      if (!throws_now(one)) continue;
      one.thrown = std::min(one.thrown, precise_time());
      failure = one.failure;
    }
  }
  if (failure) failure(cause);
}

constexpr std::size_t kMaxFunctions = 64;
std::mutex functions_mutex;

std::deque<std::shared_ptr<const FunctionFailure>>& failed_functions() {
  static auto& list = *new std::deque<std::shared_ptr<const FunctionFailure>>;
  return list;
}

}  // namespace

void FailedStreams::add(const std::vector<CUstream>& streams, std::int64_t since,
                        const Throw& failure) {
  const std::lock_guard lock(failed_mutex);
  std::vector<CUstream> marked;
  for (const CUstream stream : streams)
    if (mark_failed(stream, since, failure)) marked.push_back(stream);
  while (!marked.empty()) {
    const CUstream failed = marked.back();
    marked.pop_back();
    for (const StreamWait& wait : stream_waits())
      if (wait.recorded_on == failed && wait.recorded_at >= since &&
          mark_failed(wait.waiting, since, failure))
        marked.push_back(wait.waiting);
  }
  any_.store(!failed_streams().empty(), std::memory_order_release);
}

void FailedStreams::waits(CUstream waiting, CUstream recorded_on, std::int64_t recorded_at) {
  if (waiting == recorded_on) return;
  const std::lock_guard lock(failed_mutex);
  const auto known =
      std::find_if(stream_waits().begin(), stream_waits().end(), [&](const StreamWait& one) {
        return one.waiting == waiting && one.recorded_on == recorded_on;
      });
  if (known == stream_waits().end())
    stream_waits().push_back({waiting, recorded_on, recorded_at});
  else
    known->recorded_at = std::max(known->recorded_at, recorded_at);
  if (!any_.load(std::memory_order_relaxed)) [[likely]]
    return;
  std::optional<Throw> failure;
  for (const FailedStream& one : failed_streams())
    if (one.stream == recorded_on && one.covers(recorded_at)) failure = one.failure;
  if (failure) mark_failed(waiting, precise_time(), *failure);
}

void FailedStreams::forget(CUstream stream) noexcept {
  const std::lock_guard lock(failed_mutex);
  std::erase_if(stream_waits(), [&](const StreamWait& one) {
    return one.waiting == stream || one.recorded_on == stream;
  });
  if (!any_.load(std::memory_order_relaxed)) return;
  // Events recorded on it still throw. A new stream may get the same handle.
  std::size_t destroyed = 0;
  for (FailedStream& one : failed_streams()) {
    if (one.stream == stream && !one.destroyed) {
      one.destroyed = true;
      one.thrown = std::min(one.thrown, precise_time());
    }
    destroyed += one.destroyed;
  }
  std::erase_if(failed_streams(), [&](const FailedStream& one) {
    if (!one.destroyed || destroyed <= kMaxDestroyed) return false;
    --destroyed;
    return true;
  });
  any_.store(!failed_streams().empty(), std::memory_order_release);
}

void FailedStreams::check_failed(CUstream stream, std::int64_t began, const std::string& cause) {
  throw_failure(cause, [&](FailedStream& one) {
    if (one.stream != stream || one.destroyed || one.thrown_by_stream < began) return false;
    one.thrown_by_stream = std::min(one.thrown_by_stream, precise_time());
    return true;
  });
}

void FailedStreams::check_recorded(CUstream stream, std::int64_t at, const std::string& cause) {
  throw_failure(cause,
                [&](const FailedStream& one) { return one.stream == stream && one.covers(at); });
}

const void* FailedFunctions::add(const std::shared_ptr<const FunctionFailure>& failure) {
  std::shared_ptr<const FunctionFailure> oldest;  // released after the lock
  const std::lock_guard lock(functions_mutex);
  failed_functions().push_back(failure);
  if (failed_functions().size() > kMaxFunctions) {
    oldest = std::move(failed_functions().front());
    failed_functions().pop_front();
  }
  return failure.get();
}

void FailedFunctions::check(const void* origin) {
  std::shared_ptr<const FunctionFailure> found;
  {
    const std::lock_guard lock(functions_mutex);
    for (const auto& one : failed_functions())
      if (one.get() == origin) found = one;
  }
  if (found) throw FunctionFailure(*found);
}

}  // namespace pynccl

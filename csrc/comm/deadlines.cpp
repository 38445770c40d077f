#include "comm/deadlines.h"

#include <cmath>
#include <cstdlib>
#include <limits>
#include <stdexcept>
#include <utility>

#include "comm/observer.h"
#include "common/per_process.h"
#include "nccl/device.h"

namespace pynccl {
namespace {

constexpr double kNanoseconds = 1e9;
constexpr std::int64_t kEventInterval = 100'000'000;   // ns between two events of one communicator
constexpr std::int64_t kSilenceLimit = 5'000'000'000;  // ns, until a driver counts as hung
constexpr double kDefaultSeconds = 1800;

std::mutex scopes_mutex;  // guards the number of scopes and their shortest limit

struct OpenList {
  std::mutex mutex;
  std::vector<OpenCommunicators::Entry> all;
};

OpenList& open_list() { return common::per_process<OpenList>(); }

}  // namespace

std::int64_t limit_from_seconds(std::optional<double> seconds) {
  constexpr double kMaxSeconds = 9e9;  // the limit of 64-bit nanoseconds
  if (!seconds || *seconds > kMaxSeconds) return FlightRecord::kNoLimit;
  return static_cast<std::int64_t>(std::ceil(*seconds * kNanoseconds));
}

double seconds_from_limit(std::int64_t limit) {
  if (limit == FlightRecord::kNoLimit) return std::numeric_limits<double>::infinity();
  return static_cast<double>(limit) / kNanoseconds;
}

std::int64_t default_limit() {
  const char* text = std::getenv("PYNCCL_TIMEOUT");
  if (!text || !*text) return limit_from_seconds(kDefaultSeconds);
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end || !(seconds >= 0))
    throw std::invalid_argument(std::string("PYNCCL_TIMEOUT: '") + text +
                                "' is not a non-negative number of seconds");
  return limit_from_seconds(seconds == 0 ? std::nullopt : std::optional(seconds));
}

DeadlineScope::DeadlineScope(double seconds, Kind kind)
    : limit_(limit_from_seconds(seconds)), kind_(kind) {
  {
    const std::lock_guard lock(thread_->mutex);
    thread_->scopes.push_back(this);
  }
  {
    const std::lock_guard lock(scopes_mutex);
    scopes_.fetch_add(1);
    shortest_.store(std::min(shortest_.load(), limit_));
  }
  Observers::deadlines_changed();
}

DeadlineScope::~DeadlineScope() {
  {
    const std::lock_guard lock(thread_->mutex);
    std::erase(thread_->scopes, this);
  }
  const std::lock_guard lock(scopes_mutex);
  if (scopes_.fetch_sub(1) == 1) shortest_.store(FlightRecord::kNoLimit);
}

const std::shared_ptr<DeadlineScope::Thread>& DeadlineScope::this_thread() {
  thread_local const auto thread = std::make_shared<Thread>();
  return thread;
}

bool DeadlineScope::on_this_thread() {
  Thread& thread = *this_thread();
  const std::lock_guard lock(thread.mutex);
  return !thread.scopes.empty();
}

std::int64_t DeadlineScope::applied_to(std::int64_t limit) {
  std::int64_t shortest = FlightRecord::kNoLimit;
  Thread& thread = *this_thread();
  const std::lock_guard lock(thread.mutex);
  for (const DeadlineScope* const scope : thread.scopes)
    if (scope->kind_ == Kind::kReplaces)
      limit = scope->limit_;
    else
      shortest = std::min(shortest, scope->limit_);
  return std::min(limit, shortest);
}

void Deadlines::begin(std::shared_ptr<Library> library, int device) {
  library_ = std::move(library);
  device_ = device;
  events_ = std::make_shared<EventPool>(library_, device_);
  // On GPUs every call only enqueues, so the handle is one that no stream has.
  blocking_stream_ = reinterpret_cast<CUstream>(on_gpu() ? UINTPTR_MAX : std::uintptr_t{0});
  next_event_.store(INT64_MIN, std::memory_order_relaxed);
}

void Deadlines::end_group() {
  const std::uint64_t last = recorder_.last();
  const bool any = last >= group_first_.load(std::memory_order_relaxed);
  group_began_.store(0, std::memory_order_release);
  if (const auto record = any ? recorder_.read(last) : std::nullopt)
    enqueued(record->stream, record->issued);
}

Deadlines::Call::Call(Deadlines& deadlines, const char* function) : deadlines_(deadlines) {
  const std::lock_guard lock(deadlines.mutex_);
  entry_ =
      deadlines.calls_.insert(deadlines.calls_.end(), {function, coarse_time(), deadlines.limit()});
}

Deadlines::Call::~Call() {
  const std::lock_guard lock(deadlines_.mutex_);
  deadlines_.calls_.erase(entry_);
}

void Deadlines::record_event(CUstream stream, std::int64_t now) noexcept {
  next_event_.store(now + kEventInterval, std::memory_order_relaxed);
  // In a DeadlineScope each operation may have a different limit and needs its own event. Otherwise
  // the monitor records one later, if the stream still exists.
  const bool scoped = DeadlineScope::on_this_thread();
  const bool needed = scoped || !Stream::is_existing(stream);
  std::unique_lock lock(mutex_, std::defer_lock);
  if (needed)
    lock.lock();
  else if (!lock.try_lock() || !outstanding_.empty())
    return;
  const bool alone = scoped || outstanding_.empty();
  lock.unlock();
  try {
    const std::optional<FlightRecord> last = recorder_.read(recorder_.last());
    if (!last || !library_) return;
    if (alone)
      record_event(stream, *last);
    else
      record_newest(stream, *last);
  } catch (const std::exception&) {  // the next driver call reports it
  }
}

void Deadlines::record_event(CUstream stream, const FlightRecord& last) {
  auto event = take_recorded(stream);
  if (!event) return;
  const std::lock_guard lock(mutex_);
  keep_newest();
  outstanding_.push_back({last, coarse_time(), std::move(event)});
}

bool Deadlines::is_captured(CUstream stream) {
  const bool captured = is_capturing(*library_, stream);
  if (captured) mark_captured();
  return captured;
}

// An event recorded on the stream, or null if the stream is being captured.
std::shared_ptr<const PooledEvent> Deadlines::take_recorded(CUstream stream) {
  const DeviceScope device(*library_, device_);
  const RelaxedMode relaxed(*library_);
  if (is_captured(stream)) return nullptr;
  auto event = std::make_shared<const PooledEvent>(events_->acquire());
  (*event)->record(stream);
  return event;
}

void Deadlines::record_newest(CUstream stream, const FlightRecord& last) {
  std::unique_lock lock(mutex_);
  if (!newest_ || newest_->recording) {
    lock.unlock();
    auto event = take_recorded(stream);
    if (!event) return;
    lock.lock();
    Outstanding outstanding{last, coarse_time(), std::move(event)};
    if (newest_)
      outstanding_.push_back(std::move(outstanding));
    else
      newest_.emplace(std::move(outstanding));
    return;
  }
  newest_->recording = true;  // newest_ still describes the earlier operation
  const std::shared_ptr<const PooledEvent> event = newest_->event;
  lock.unlock();
  bool recorded = false;
  const auto end = [&] {
    lock.lock();
    newest_->recording = false;
    if (!recorded) return;
    newest_->record = last;
    newest_->since = coarse_time();
  };
  try {
    if (!is_captured(stream)) {
      (*event)->record(stream);
      recorded = true;
    }
  } catch (...) {
    end();
    throw;
  }
  end();
}

void Deadlines::keep_newest() {
  if (!newest_ || newest_->recording) return;
  outstanding_.push_back(std::move(*newest_));
  newest_.reset();
}

void Deadlines::launched(const std::shared_ptr<const std::string>& what, CUstream stream,
                         const std::shared_ptr<const PooledEvent>& event) {
  const std::lock_guard lock(mutex_);
  if (expired_.load(std::memory_order_relaxed)) return;
  const auto of_graph = [&](const Launch& one) { return one.what == what; };
  const std::int64_t now = coarse_time();
  Launch launch{what, stream, limit(), event, nullptr, now, now};
  if (DeadlineScope::on_this_thread() || std::none_of(launches_.begin(), launches_.end(), of_graph))
    launch.watched = event;
  // The monitor may have begun to watch the same event for an earlier launch, whose end can no
  // longer be observed.
  for (Launch& one : launches_) {
    if (one.watched != event) continue;
    one.limit = launch.limit;
    one.since = now;
  }
  const auto before = std::find_if(launches_.begin(), launches_.end(), [&](const Launch& one) {
    return of_graph(one) && one.stream == stream && !one.watched;
  });
  if (launch.watched || before == launches_.end()) {
    launches_.push_back(std::move(launch));
  } else {
    launch.launched = before->launched;
    *before = std::move(launch);
  }
}

void Deadlines::update_launches() {
  std::vector<std::shared_ptr<const PooledEvent>> done;
  {
    const std::lock_guard lock(mutex_);
    if (launches_.empty()) return;
    for (const Launch& one : launches_)
      if (one.watched) done.push_back(one.watched);
  }
  std::erase_if(done, [](const auto& event) { return !(*event)->query(); });
  const std::lock_guard lock(mutex_);
  std::erase_if(launches_, [&](const Launch& one) {
    return one.watched && std::find(done.begin(), done.end(), one.watched) != done.end();
  });
  for (Launch& launch : launches_) {
    if (launch.watched) continue;
    const bool follows = std::any_of(launches_.begin(), launches_.end(), [&](const Launch& one) {
      return one.what == launch.what && one.watched;
    });
    if (follows) continue;
    launch.watched = launch.event.lock();
    launch.since = coarse_time();
  }
  // A launch whose event has no owner is done.
  std::erase_if(launches_, [](const Launch& one) { return one.event.expired(); });
}

// The event of the first operation that has one and is not known to be done.
std::shared_ptr<const PooledEvent> Deadlines::first_event() {
  const std::lock_guard lock(mutex_);
  if (outstanding_.empty()) keep_newest();
  return outstanding_.empty() ? nullptr : outstanding_.front().event;
}

// Updates done_. Because the operations of a communicator run in order, those up to a returned call
// on the blocking stream are done, and those before a completed event.
void Deadlines::update_done() {
  std::shared_ptr<const PooledEvent> event;
  while ((event = first_event()) && (*event)->query()) {
    const std::lock_guard lock(mutex_);
    if (outstanding_.empty() || outstanding_.front().event != event) continue;
    done_.store(std::max(done(), outstanding_.front().record.sequence), std::memory_order_release);
    outstanding_.pop_front();
    next_event_.store(INT64_MIN, std::memory_order_relaxed);
  }
  {
    const std::lock_guard lock(mutex_);
    done_.store(std::max(done(), last_returned()), std::memory_order_release);
  }
  if (!event && done() < recorder_.last() && open_group() == UINT64_MAX) record_at_end();
}

// The last operation, outside an open group, whose call has returned on the blocking stream; 0 if
// none is known.
std::uint64_t Deadlines::last_returned() const {
  const std::uint64_t last = recorder_.last();
  std::uint64_t number = std::min(last, open_group() - 1);
  for (; number > done() && number + FlightRecorder::kRecords > last; --number) {
    const std::optional<FlightRecord> record = recorder_.read(number);
    if (record && record->stream == blocking_stream_ &&
        record->state == FlightRecord::State::kIssued)
      return number;
  }
  return 0;
}

// The first operation of the open group; UINT64_MAX without one.
std::uint64_t Deadlines::open_group() const {
  return group_began_.load(std::memory_order_acquire) != 0 ? group_first_.load() : UINT64_MAX;
}

// Records an event after the last operation outside graphs, if its stream cannot be destroyed
// meanwhile. The user may destroy a CUDA stream at any time.
void Deadlines::record_at_end() {
  const std::uint64_t last = recorder_.last();
  for (std::uint64_t number = last; number > done() && number + FlightRecorder::kRecords > last;
       --number) {
    const std::optional<FlightRecord> newest = recorder_.read(number);
    if (newest && newest->state == FlightRecord::State::kCaptured) continue;
    if (newest && newest->state == FlightRecord::State::kIssued &&
        newest->stream != blocking_stream_)
      Stream::if_existing(newest->stream, [&] { record_event(newest->stream, *newest); });
    return;
  }
}

// Whether all work on a stream is done, as far as that is known.
bool Deadlines::reached_end(CUstream stream) const noexcept {
  bool done = true;
  try {
    const DeviceScope device(*library_, device_);
    const RelaxedMode relaxed(*library_);
    Stream::if_existing(stream, [&] {
      done = !is_capturing(*library_, stream) &&
             library_->driver().StreamQuery(stream) != CUDA_ERROR_NOT_READY;
    });
  } catch (const std::exception&) {
  }
  return done;
}

Deadlines::Unfinished Deadlines::unfinished() {
  update();
  const bool asks = silent_since() == 0;
  Unfinished unfinished;
  std::vector<CUstream> done_streams;
  const auto contains = [](const std::vector<CUstream>& streams, CUstream stream) {
    return std::find(streams.begin(), streams.end(), stream) != streams.end();
  };
  const auto add = [&](CUstream stream, std::int64_t since) {
    if (Stream::was_created_after(stream, since)) return;
    if (!contains(unfinished.streams, stream)) unfinished.streams.push_back(stream);
    unfinished.since = std::min(unfinished.since, since);
  };
  std::optional<Outstanding> newest;
  {
    const std::lock_guard lock(mutex_);
    // A stream that may have been destroyed cannot be queried, only the events can.
    for (const Outstanding& one : outstanding_) add(one.record.stream, one.record.issued);
    for (const Launch& launch : launches_) add(launch.stream, launch.launched);
    newest = newest_;
  }
  if (newest && !(asks && (*newest->event)->query()))
    add(newest->record.stream, newest->record.issued);
  for (const FlightRecord& record : recorder_.read_all()) {
    const CUstream stream = record.stream;
    if (record.sequence <= done() || record.state != FlightRecord::State::kIssued ||
        stream == blocking_stream_ || contains(done_streams, stream))
      continue;
    if (contains(unfinished.streams, stream) || !asks || !reached_end(stream))
      add(stream, record.issued);
    else
      done_streams.push_back(stream);
  }
  return unfinished;
}

void Deadlines::update() {
  if (expired_.load(std::memory_order_relaxed)) return;  // its operations end without a result
  if (on_gpu() && silent_since() != 0) return;
  try {
    update_launches();
    update_done();
  } catch (const DriverFailure&) {  // the user's next driver call reports it
  }
}

std::vector<Deadlines::Entry> Deadlines::calls() {
  const std::lock_guard lock(mutex_);
  std::vector<Entry> calls(calls_.begin(), calls_.end());
  if (const std::int64_t began = group_began_.load(std::memory_order_acquire); began != 0)
    calls.push_back({"ncclGroupEnd", began, group_limit_.load(std::memory_order_relaxed)});
  return calls;
}

std::optional<Deadlines::Late> Deadlines::late() {
  const std::int64_t now = coarse_time(), silent = on_gpu() ? silent_since() : 0;
  const auto is_late = [&](std::int64_t began, std::int64_t limit) {
    return limit != FlightRecord::kNoLimit && now - began >= limit;
  };
  const auto check = [&](std::int64_t began, std::int64_t limit,
                         auto&& what) -> std::optional<Late> {
    if (!is_late(began, limit)) return std::nullopt;
    return Late{what(), began, seconds_from_limit(limit), std::nullopt};
  };
  const std::lock_guard lock(mutex_);
  if (expired_.load(std::memory_order_relaxed)) return std::nullopt;
  // A driver that has been silent for a short time may only be slow, and the work may be done.
  const bool knows_work = silent == 0 || now - silent >= kSilenceLimit;
  const Launch* launch = nullptr;  // the first late one
  for (const Launch& one : launches_)
    if (knows_work && one.watched && is_late(one.since, one.limit) &&
        (!launch || one.since < launch->since))
      launch = &one;
  if (const std::int64_t began = group_began_.load(std::memory_order_acquire); began != 0) {
    const auto first = recorder_.read(group_first_.load(std::memory_order_relaxed));
    if (auto late = check(began, group_limit_.load(std::memory_order_relaxed), [&] {
          return "a group" + (first ? " that begins with " + first->text() : std::string());
        }))
      return late;
  } else {
    const auto last = recorder_.read(recorder_.last());
    if (last && last->state == FlightRecord::State::kCalled)
      if (auto late = check(last->issued, last->limit, [&] { return last->text(); })) return late;
    for (const Outstanding& one : outstanding_) {
      if (!knows_work || (launch && launch->since <= one.since)) break;
      const FlightRecord& record = one.record;
      if (auto late = check(one.since, record.limit, [&] { return record.text(); })) return late;
    }
    if (knows_work && newest_ && !(launch && launch->since <= newest_->since))
      if (auto late =
              check(newest_->since, newest_->record.limit, [&] { return newest_->record.text(); }))
        return late;
  }
  if (launch) return check(launch->since, launch->limit, [&] { return *launch->what; });
  for (const Entry& call : calls_) {
    auto late = check(call.began, call.limit, [&] { return std::string(call.function); });
    if (!late) continue;
    late->call = call;
    return late;
  }
  return std::nullopt;
}

bool Deadlines::expire(const Late& late) {
  const std::lock_guard lock(mutex_);
  if (late.call && std::find(calls_.begin(), calls_.end(), *late.call) == calls_.end())
    return false;
  expired_ = true;
  return true;
}

void OpenCommunicators::add(const std::shared_ptr<Deadlines>& deadlines,
                            std::weak_ptr<Communicator> communicator) {
  OpenList& list = open_list();
  const std::lock_guard lock(list.mutex);
  list.all.push_back({deadlines, std::move(communicator)});
}

void OpenCommunicators::remove(const Deadlines& deadlines) {
  OpenList& list = open_list();
  const std::lock_guard lock(list.mutex);
  std::erase_if(list.all, [&](const Entry& one) { return one.deadlines.get() == &deadlines; });
}

std::vector<OpenCommunicators::Entry> OpenCommunicators::all() {
  OpenList& list = open_list();
  const std::lock_guard lock(list.mutex);
  return list.all;
}

std::vector<std::shared_ptr<Communicator>> OpenCommunicators::communicators() {
  std::vector<std::shared_ptr<Communicator>> open;
  for (const Entry& one : all())
    if (auto communicator = one.communicator.lock()) open.push_back(std::move(communicator));
  return open;
}

}  // namespace pynccl

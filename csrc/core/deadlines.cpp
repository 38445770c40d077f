#include "core/deadlines.h"

#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <utility>

#include "core/device.h"
#include "core/monitor.h"

namespace pynccl {
namespace {

constexpr double kNanoseconds = 1e9;
constexpr std::int64_t kEventInterval = 100'000'000;  // ns between two events of one communicator
constexpr double kDefaultSeconds = 1800;

thread_local std::int64_t scope_limit = FlightRecord::kNoLimit;

double seconds_of(std::int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / kNanoseconds;
}

bool is_capturing(const Library& library, CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  DRIVER_CHECK(library, StreamIsCapturing, (stream, &status));
  return status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace

std::int64_t limit_from_seconds(std::optional<double> seconds) {
  constexpr double kMost = 9e9;  // what nanoseconds can hold
  if (!seconds || *seconds > kMost) return FlightRecord::kNoLimit;
  return static_cast<std::int64_t>(std::ceil(*seconds * kNanoseconds));
}

std::int64_t default_limit() {
  const char* text = std::getenv("PYNCCL_TIMEOUT");
  if (!text || !*text) return limit_from_seconds(kDefaultSeconds);
  char* end = nullptr;
  const double seconds = std::strtod(text, &end);
  if (*end || !(seconds >= 0))
    throw std::invalid_argument(std::string("PYNCCL_TIMEOUT: '") + text +
                                "' is not a number of seconds from 0 on");
  return limit_from_seconds(seconds == 0 ? std::nullopt : std::optional(seconds));
}

DeadlineScope::DeadlineScope(double seconds) : before_(scope_limit) {
  scope_limit = std::min(before_, limit_from_seconds(seconds));
  scopes_.fetch_add(1);
  std::int64_t shortest = shortest_.load();
  while (scope_limit < shortest && !shortest_.compare_exchange_weak(shortest, scope_limit)) {
  }
  Monitor::get().wake();
}

DeadlineScope::~DeadlineScope() {
  scope_limit = before_;
  if (scopes_.fetch_sub(1) == 1) shortest_.store(FlightRecord::kNoLimit);
}

std::int64_t DeadlineScope::of_this_thread() { return scope_limit; }

std::int64_t DeadlineScope::shortest() { return shortest_.load(); }

namespace {

struct Expired {
  CUstream stream;
  NcclFailure failure;
  std::int64_t time;
  bool thrown;
};

std::mutex expired_mutex;
std::vector<Expired>& expired_streams() {
  static auto& list = *new std::vector<Expired>;
  return list;
}

}  // namespace

void ExpiredStreams::add(const std::vector<CUstream>& streams, const NcclFailure& failure) {
  const std::lock_guard lock(expired_mutex);
  for (const CUstream stream : streams) {
    std::erase_if(expired_streams(), [&](const Expired& one) { return one.stream == stream; });
    expired_streams().push_back({stream, failure, precise_time(), false});
  }
  any_.store(!expired_streams().empty(), std::memory_order_release);
}

void ExpiredStreams::forget(CUstream stream) noexcept {
  if (!any_.load(std::memory_order_acquire)) return;
  const std::lock_guard lock(expired_mutex);
  std::erase_if(expired_streams(), [&](const Expired& one) { return one.stream == stream; });
  any_.store(!expired_streams().empty(), std::memory_order_release);
}

void ExpiredStreams::check_expired(CUstream stream, std::int64_t began) {
  const std::lock_guard lock(expired_mutex);
  for (Expired& one : expired_streams()) {
    if (one.stream != stream) continue;
    if (!std::exchange(one.thrown, true) || one.time >= began) throw one.failure;
  }
}

void Deadlines::begin(std::shared_ptr<Library> library, int device, bool blocking_null) {
  library_ = std::move(library);
  device_ = device;
  // No stream has this handle: on GPUs every call only enqueues.
  blocking_stream_ = reinterpret_cast<CUstream>(blocking_null ? std::uintptr_t{0} : UINTPTR_MAX);
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
  // The monitor has the lock for moments. What a thread issues in a scope may have a limit of its
  // own, so each of its operations needs an event.
  std::unique_lock lock(mutex_, std::defer_lock);
  const bool scoped = DeadlineScope::of_this_thread() != FlightRecord::kNoLimit;
  if (scoped)
    lock.lock();
  else if (!lock.try_lock() || !outstanding_.empty())
    return;
  try {
    record_event(stream);
  } catch (const std::exception&) {  // the next call of the driver reports it
  }
}

void Deadlines::record_event(CUstream stream) {
  const std::optional<FlightRecord> last = recorder_.read(recorder_.last());
  if (!last || !library_) return;
  const DeviceScope device(*library_, device_);
  const RelaxedMode relaxed(*library_);
  if (is_capturing(*library_, stream)) return;
  if (!events_) events_ = std::make_shared<EventPool>(library_, device_);
  PooledEvent event = events_->take();
  event->record(stream);
  outstanding_.push_back({*last, coarse_time(), std::move(event)});
}

// Which operations are done: those of calls that have returned on a blocking stream, and those
// before an event that is done.
void Deadlines::update_done() {
  std::uint64_t done = this->done();
  while (!outstanding_.empty() && outstanding_.front().event->query()) {
    done = std::max(done, outstanding_.front().record.sequence);
    outstanding_.pop_front();
    next_event_.store(INT64_MIN, std::memory_order_relaxed);
  }
  const std::uint64_t last = recorder_.last();
  for (; done < last; ++done) {
    const std::optional<FlightRecord> next = recorder_.read(done + 1);
    if (!next) continue;  // newer operations have replaced its record
    if (next->stream != blocking_stream_ || next->state == FlightRecord::State::kCalled) break;
    if (next->sequence >= open_group()) break;
  }
  done_.store(done, std::memory_order_release);
  if (done < last && outstanding_.empty() && open_group() == UINT64_MAX) record_at_end();
}

// The first operation of the group that is open; UINT64_MAX where none is.
std::uint64_t Deadlines::open_group() const {
  return group_began_.load(std::memory_order_acquire) != 0 ? group_first_.load() : UINT64_MAX;
}

// Records an event after the last operation, if its stream cannot be destroyed meanwhile: another
// thread may destroy a stream of CUDA at any time.
void Deadlines::record_at_end() {
  const std::optional<FlightRecord> newest = recorder_.read(recorder_.last());
  if (newest && newest->state == FlightRecord::State::kIssued && newest->stream != blocking_stream_)
    Stream::if_existing(newest->stream, [&] { record_event(newest->stream); });
}

std::vector<CUstream> Deadlines::open_streams() const {
  std::vector<CUstream> streams;
  for (std::uint64_t number = done() + 1; number <= recorder_.last(); ++number) {
    const std::optional<FlightRecord> record = recorder_.read(number);
    if (record && record->stream != blocking_stream_ &&
        std::find(streams.begin(), streams.end(), record->stream) == streams.end())
      streams.push_back(record->stream);
  }
  return streams;
}

void Deadlines::update() {
  const std::lock_guard lock(mutex_);
  update_locked();
}

void Deadlines::update_locked() {
  if (expired_.load(std::memory_order_relaxed)) return;  // its operations end without a result
  try {
    update_done();
  } catch (const DriverFailure&) {  // the user's next call of the driver reports it
  }
}

std::optional<Deadlines::Late> Deadlines::late() {
  const std::int64_t now = coarse_time();
  const auto check = [&](std::int64_t began, std::int64_t limit,
                         auto&& what) -> std::optional<Late> {
    if (limit == FlightRecord::kNoLimit || now - began < limit) return std::nullopt;
    return Late{what(), seconds_of(now - began), seconds_of(limit), open_streams()};
  };
  const std::lock_guard lock(mutex_);
  if (expired_.load(std::memory_order_relaxed)) return std::nullopt;
  update_locked();
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
      const FlightRecord& record = one.record;
      if (auto late = check(one.since, record.limit, [&] { return record.text(); })) return late;
    }
  }
  for (const Entry& call : calls_)
    if (auto late = check(call.began, call.limit, [&] { return std::string(call.function); }))
      return late;
  return std::nullopt;
}

}  // namespace pynccl

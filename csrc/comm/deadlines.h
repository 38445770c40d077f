// Deadlines of one communicator: how long its operations and calls may take, and what is late. The
// thread of watch/monitor asks.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/event_pool.h"
#include "comm/flight_recorder.h"
#include "comm/stream.h"

namespace pynccl {

// Nanoseconds of a limit in seconds; FlightRecord::kNoLimit for none.
std::int64_t limit_from_seconds(std::optional<double> seconds);

// And back; infinity for none.
double seconds_from_limit(std::int64_t limit);

// PYNCCL_TIMEOUT in seconds, of communicators that set no limit; 1800 where it is not set, none
// where it is 0. Throws std::invalid_argument.
std::int64_t default_limit();

// A limit for what this thread issues, from construction to destruction. The shortest of those that
// shorten applies; one that replaces stands in for the limit of the communicator.
class DeadlineScope {
 public:
  enum class Kind { kShortens, kReplaces };

  explicit DeadlineScope(double seconds, Kind kind = Kind::kShortens);
  ~DeadlineScope();
  DeadlineScope(const DeadlineScope&) = delete;
  DeadlineScope& operator=(const DeadlineScope&) = delete;

  static bool any() { return scopes_.load(std::memory_order_relaxed) != 0; }
  static bool on_this_thread();
  [[gnu::cold]] static std::int64_t applied_to(std::int64_t limit);  // of a communicator
  static std::int64_t shortest();  // at least as short as that of any thread; kNoLimit without one

 private:
  struct Limits {
    std::int64_t shortest = FlightRecord::kNoLimit;
    std::optional<std::int64_t> replacement;
  };

  static Limits& of_this_thread();

  inline static std::atomic<int> scopes_ = 0;
  inline static std::atomic<std::int64_t> shortest_ = FlightRecord::kNoLimit;
  const Limits before_;
};

class Deadlines {
 public:
  // A call of NCCL that is no operation.
  struct Entry {
    const char* function;
    std::int64_t began;
    std::int64_t limit;
    bool operator==(const Entry&) const = default;
  };

  // What is late: "all_reduce #5 (float32, count=4, sum)".
  struct Late {
    std::string what;
    std::int64_t began;         // tells it from a later one with the same name
    double limit;               // seconds
    std::optional<Entry> call;  // none: an operation
  };

  // A GPU driver can block a query behind a hung kernel. This is the time at which the monitor's
  // query began if it has not returned, else 0. Meanwhile no other thread queries the driver.
  static void set_silent_since(std::int64_t time) { silent_since_.store(time); }
  static std::int64_t silent_since() { return silent_since_.load(); }

  // Once the communicator is made. blocking_null: a call on the null stream returns when the
  // operation is done.
  void begin(std::shared_ptr<Library> library, int device, bool blocking_null);
  void set_limit(std::int64_t limit) { limit_.store(limit, std::memory_order_relaxed); }
  std::int64_t own_limit() const { return limit_.load(std::memory_order_relaxed); }
  [[gnu::always_inline]] std::int64_t limit() const {  // of what this thread issues now
    const std::int64_t own = own_limit();
    if (DeadlineScope::any()) [[unlikely]]
      return DeadlineScope::applied_to(own);
    return own;
  }

  FlightRecorder& recorder() { return recorder_; }
  const FlightRecorder& recorder() const { return recorder_; }

  // After an operation was enqueued on a stream, outside a group.
  [[gnu::always_inline]] void enqueued(CUstream stream, std::int64_t now) {
    if (stream == blocking_stream_) [[likely]]
      return;
    if (now >= next_event_.load(std::memory_order_relaxed) || DeadlineScope::any() ||
        !Stream::is_existing(stream)) [[unlikely]]
      record_event(stream, now);
  }

  // After a launch of a graph that uses the communicator. what: names the launches of this graph,
  // the same object for all of them. event: was recorded after the launch; the next launch records
  // it again only where nothing else holds it.
  void launched(const std::shared_ptr<const std::string>& what, CUstream stream,
                const std::shared_ptr<const PooledEvent>& event);

  // A group with operations of this communicator, until ncclGroupEnd has returned.
  void begin_group() {
    group_first_.store(recorder_.last() + 1, std::memory_order_relaxed);
    group_limit_.store(limit(), std::memory_order_relaxed);
    group_began_.store(coarse_time(), std::memory_order_release);
  }
  void end_group();
  std::int64_t group_began() const { return group_began_.load(std::memory_order_relaxed); }
  std::int64_t group_limit() const { return group_limit_.load(std::memory_order_relaxed); }
  class Group {
   public:
    explicit Group(Deadlines& deadlines) : deadlines_(deadlines) { deadlines.begin_group(); }
    ~Group() { deadlines_.end_group(); }
    Group(const Group&) = delete;
    Group& operator=(const Group&) = delete;

   private:
    Deadlines& deadlines_;
  };

  // Another call of NCCL that waits for other ranks, from construction to destruction.
  class Call {
   public:
    Call(Deadlines& deadlines, const char* function);
    ~Call();
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Deadlines& deadlines_;
    std::list<Entry>::iterator entry_;
  };

  // The streams with operations that are not done, and when the first of these was issued.
  struct Unfinished {
    std::vector<CUstream> streams;
    std::int64_t since = INT64_MAX;
  };
  Unfinished unfinished();

  std::optional<Late> late();  // for the monitor, by what the last update() has found out
  std::vector<Entry> calls();  // that have not returned, also the end of a group
  void update();               // finds out which operations are done, without the mutex
  bool on_gpu() const { return library_ && library_->memory() == Memory::kDevice; }
  // From now on nothing is late any more. False where the late call has returned meanwhile.
  bool expire(const Late& late);
  bool expired() const { return expired_.load(); }
  // Operations were captured, into a graph of pynccl or, as far as it is known, of another library.
  void mark_captured() { captured_.store(true, std::memory_order_relaxed); }
  bool captured() const { return captured_.load(std::memory_order_relaxed); }
  // All operations up to this one are known to be done.
  std::uint64_t done() const { return done_.load(std::memory_order_acquire); }

 private:
  void record_event(CUstream stream, std::int64_t now) noexcept;
  void record_event(CUstream stream, const FlightRecord& last);
  bool is_captured(CUstream stream);
  std::shared_ptr<const PooledEvent> take_recorded(CUstream stream);
  void record_newest(CUstream stream, const FlightRecord& last);
  void keep_newest();
  std::shared_ptr<const PooledEvent> first_event();
  void update_done();
  void update_launches();
  std::uint64_t last_returned() const;
  std::uint64_t open_group() const;
  void record_at_end();
  bool reached_end(CUstream stream) const noexcept;

  // What an operation reads comes before the records.
  std::atomic<std::int64_t> limit_ = FlightRecord::kNoLimit;
  std::atomic<std::int64_t> next_event_ = INT64_MAX;  // until begin()
  CUstream blocking_stream_ = nullptr;
  FlightRecorder recorder_;
  std::shared_ptr<Library> library_;
  int device_ = -1;
  std::atomic<std::int64_t> group_began_ = 0;  // 0: there is no group
  std::atomic<std::int64_t> group_limit_ = 0;
  std::atomic<std::uint64_t> group_first_ = 0;
  std::atomic<std::uint64_t> done_ = 0;  // all operations up to this one are done
  std::atomic<bool> expired_ = false;
  std::atomic<bool> captured_ = false;
  inline static std::atomic<std::int64_t> silent_since_ = 0;
  std::shared_ptr<EventPool> events_;
  std::mutex mutex_;  // of the following; no thread calls the driver with it
  // Operations after which an event was recorded that is not done. Of operations without one it is
  // not known whether they are done, so they are never late.
  struct Outstanding {
    FlightRecord record;
    std::int64_t since;  // when the event was recorded
    std::shared_ptr<const PooledEvent> event;
    bool recording = false;  // a thread records the event again, for a later operation
  };
  std::deque<Outstanding> outstanding_;
  // The newest operation on a stream that may be destroyed at any time, which needs its event now;
  // the next one records the event again.
  std::optional<Outstanding> newest_;
  // Launches of graphs that are not known to be done. One of each graph is watched, and all in a
  // DeadlineScope: they hold their events. Of the others only the last one on a stream is kept.
  struct Launch {
    std::shared_ptr<const std::string> what;
    CUstream stream;
    std::int64_t limit;
    std::weak_ptr<const PooledEvent> event;
    std::shared_ptr<const PooledEvent> watched;  // null: not yet
    std::int64_t since;                          // when that began
    std::int64_t launched;                       // or the first one on the stream
  };
  std::vector<Launch> launches_;
  std::list<Entry> calls_;
};

}  // namespace pynccl

// Deadlines: the time limits of one communicator's operations and calls, and which of them are
// late. OpenCommunicators lists them for the thread of watch/monitor, which polls them.
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

#include "comm/flight_recorder.h"
#include "comm/stream.h"

namespace pynccl {

class Communicator;

// Converts a limit from seconds to nanoseconds; FlightRecord::kNoLimit for none.
std::int64_t limit_from_seconds(std::optional<double> seconds);

// The inverse; infinity for no limit.
double seconds_from_limit(std::int64_t limit);

// The limit of communicators that set none: PYNCCL_TIMEOUT in seconds, 1800 if it is unset, and no
// limit if it is 0. Throws std::invalid_argument.
std::int64_t default_limit();

// The scope of a time limit for the operations that this thread issues. kReplaces replaces the
// limit of the communicator. Of several kShortens limits the shortest applies. The scopes of a
// thread can end in any order, and on another thread, as those of generators and coroutines do.
class DeadlineScope {
 public:
  enum class Kind { kShortens, kReplaces };

  explicit DeadlineScope(double seconds, Kind kind = Kind::kShortens);
  ~DeadlineScope();
  DeadlineScope(const DeadlineScope&) = delete;
  DeadlineScope& operator=(const DeadlineScope&) = delete;

  bool began_on_this_thread() const { return thread_ == this_thread(); }
  static bool any() { return scopes_.load(std::memory_order_relaxed) != 0; }
  static bool on_this_thread();
  [[gnu::cold]] static std::int64_t applied_to(std::int64_t limit);  // a communicator's limit
  // A lower bound for all threads; kNoLimit without scopes.
  static std::int64_t shortest() { return shortest_.load(); }

 private:
  struct Thread {
    std::mutex mutex;
    std::vector<const DeadlineScope*> scopes;  // that have not ended, oldest first
  };

  static const std::shared_ptr<Thread>& this_thread();

  inline static std::atomic<int> scopes_ = 0;
  inline static std::atomic<std::int64_t> shortest_ = FlightRecord::kNoLimit;
  const std::shared_ptr<Thread> thread_ = this_thread();
  const std::int64_t limit_;
  const Kind kind_;
};

class Deadlines {
 public:
  // An NCCL call other than a communication operation.
  struct Entry {
    const char* function;
    std::int64_t began;
    std::int64_t limit;
    bool operator==(const Entry&) const = default;
  };

  // A late operation or call.
  struct Late {
    std::string what;           // "all_reduce #5 (float32, count=4, sum)"
    std::int64_t began;         // distinguishes later ones with the same text
    double limit;               // seconds
    std::optional<Entry> call;  // none: an operation
  };

  // A GPU driver can block a query behind a hung kernel. This is the start time of the monitor's
  // query while it has not returned, else 0. Meanwhile no other thread queries the driver.
  static void set_silent_since(std::int64_t time) { silent_since_.store(time); }
  static std::int64_t silent_since() { return silent_since_.load(); }

  void begin(std::shared_ptr<Library> library, int device);  // once the communicator is created
  void set_limit(std::int64_t limit) { limit_.store(limit, std::memory_order_relaxed); }
  std::int64_t own_limit() const { return limit_.load(std::memory_order_relaxed); }
  [[gnu::always_inline]] std::int64_t limit() const {  // of operations that this thread issues
    const std::int64_t own = own_limit();
    if (DeadlineScope::any()) [[unlikely]]
      return DeadlineScope::applied_to(own);
    return own;
  }

  FlightRecorder& recorder() { return recorder_; }
  const FlightRecorder& recorder() const { return recorder_; }

  // Called after an operation was enqueued on a stream, outside a group.
  [[gnu::always_inline]] void enqueued(CUstream stream, std::int64_t now) {
    if (stream == blocking_stream_) [[likely]]
      return;
    if (now >= next_event_.load(std::memory_order_relaxed) || DeadlineScope::any() ||
        !Stream::is_existing(stream)) [[unlikely]]
      record_event(stream, now);
  }

  // Called after a launch of a graph that uses the communicator. what: the text for launches of
  // this graph; the same object for all of them. event: recorded after the launch. The next launch
  // reuses it unless it has other owners.
  void launched(const std::shared_ptr<const std::string>& what, CUstream stream,
                const std::shared_ptr<const PooledEvent>& event);

  // Called around a group with operations of this communicator, until ncclGroupEnd has returned.
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

  // The scope of an NCCL call other than an operation that waits for other ranks.
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

  // The streams with unfinished operations.
  struct Unfinished {
    std::vector<CUstream> streams;
    std::int64_t since = INT64_MAX;  // when the first of these operations was issued
  };
  Unfinished unfinished();

  std::optional<Late> late();  // for the monitor; uses the results of the last update()
  std::vector<Entry> calls();  // that have not returned, including ncclGroupEnd
  void update();               // queries which operations are done, without holding the mutex
  bool on_gpu() const { return library_ && library_->memory() == Memory::kDevice; }
  // Afterwards late() returns none. Returns false if the late call has returned meanwhile.
  bool expire(const Late& late);
  bool expired() const { return expired_.load(); }
  // Records that operations were captured into a graph of pynccl or, as far as known, of another
  // library.
  void mark_captured() { captured_.store(true, std::memory_order_relaxed); }
  bool captured() const { return captured_.load(std::memory_order_relaxed); }
  // The last operation up to which all are known to be done.
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

  // The members that an operation reads come first.
  std::atomic<std::int64_t> limit_ = FlightRecord::kNoLimit;
  std::atomic<std::int64_t> next_event_ = INT64_MAX;  // until begin()
  CUstream blocking_stream_ = nullptr;  // an operation on it is done when its call returns
  FlightRecorder recorder_;
  std::shared_ptr<Library> library_;
  int device_ = -1;
  std::atomic<std::int64_t> group_began_ = 0;  // 0: no open group
  std::atomic<std::int64_t> group_limit_ = 0;
  std::atomic<std::uint64_t> group_first_ = 0;
  std::atomic<std::uint64_t> done_ = 0;  // all operations up to this one are done
  std::atomic<bool> expired_ = false;
  std::atomic<bool> captured_ = false;
  inline static std::atomic<std::int64_t> silent_since_ = 0;
  std::shared_ptr<EventPool> events_;
  std::mutex mutex_;  // guards the following; not held during driver calls
  // The operations followed by an event that is not done. Operations without an event are never
  // late, because it is unknown whether they are done.
  struct Outstanding {
    FlightRecord record;
    std::int64_t since;  // when the event was recorded
    std::shared_ptr<const PooledEvent> event;
    bool recording = false;  // a thread is recording the event again for a later operation
  };
  std::deque<Outstanding> outstanding_;
  // The newest operation on a stream that the user may destroy at any time, so that its event must
  // be recorded immediately. The next such operation reuses the event.
  std::optional<Outstanding> newest_;
  // Graph launches that are not known to be done. One launch of each graph and all launches in a
  // DeadlineScope are watched, which means that they own their events. Of the others, only the last
  // one on each stream is listed.
  struct Launch {
    std::shared_ptr<const std::string> what;
    CUstream stream;
    std::int64_t limit;
    std::weak_ptr<const PooledEvent> event;
    std::shared_ptr<const PooledEvent> watched;  // null: not watched yet
    std::int64_t since;                          // start of the watch
    std::int64_t launched;                       // its time, or that of the first one it replaced
  };
  std::vector<Launch> launches_;
  std::list<Entry> calls_;
};

// The open communicators of the process, oldest first.
class OpenCommunicators {
 public:
  struct Entry {
    std::shared_ptr<Deadlines> deadlines;
    std::weak_ptr<Communicator> communicator;
  };

  static void add(const std::shared_ptr<Deadlines>& deadlines,
                  std::weak_ptr<Communicator> communicator);
  static void remove(const Deadlines& deadlines);

  static std::vector<Entry> all();
  static std::vector<std::shared_ptr<Communicator>> communicators();
};

}  // namespace pynccl

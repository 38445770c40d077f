// TraceState: the state of the traces and recordings of a process: the logs of the threads, the
// communicators, the clocks of the devices, and the outputs, a trace and a recording in the same
// format (docs/trace.md).
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/new_file.h"
#include "watch/trace_clock.h"
#include "watch/trace_entry.h"

namespace pynccl {

class Communicator;
class Deadlines;

// Which traces and recordings are on.
class TraceModes {
 public:
  // Whether anything is on, a recording, a trace, or a trace with graphs. Each is one load.
  static bool on() { return modes_.load(std::memory_order_relaxed) != 0; }
  static bool recorded() { return has(kRecorded); }
  static bool timed() { return has(kTimed); }
  static bool times_graphs() { return has(kGraphs); }

 private:
  friend class TraceState;

  enum Mode : unsigned { kTimed = 1, kRecorded = 2, kGraphs = 4 };
  static bool has(Mode mode) { return (modes_.load(std::memory_order_relaxed) & mode) != 0; }

  inline static std::atomic<unsigned> modes_ = 0;
};

// A lock-free ring buffer of one thread's uncollected entries. The thread writes, and one collector
// at a time reads.
class TraceLog {
 public:
  static constexpr std::uint64_t kEntries = 2048;

  explicit TraceLog(std::uint32_t thread) : thread_(thread) {}

  enum class Room { kNone, kHalf, kEnough };

  // Calls fill(entry) on the next slot, which still holds a stale entry. Returns kNone if the log
  // is full and kHalf if it has just become half full.
  template <class Fill>
  [[gnu::always_inline]] Room append(Fill&& fill) {
    const std::uint64_t written = written_.load(std::memory_order_relaxed);
    const std::uint64_t used = written - read_.load(std::memory_order_acquire);
    if (used == kEntries) [[unlikely]]
      return Room::kNone;
    TraceEntry& entry = entries_[written % kEntries];
    fill(entry);
    entry.thread = thread_;
    written_.store(written + 1, std::memory_order_release);
    return used == kEntries / 2 ? Room::kHalf : Room::kEnough;
  }

  template <class F>
  void collect(F&& take) {
    const std::uint64_t written = written_.load(std::memory_order_acquire);
    for (std::uint64_t i = read_.load(std::memory_order_relaxed); i != written; ++i) {
      take(entries_[i % kEntries]);
      read_.store(i + 1, std::memory_order_release);
    }
  }

  void end() { ended_.store(true, std::memory_order_release); }  // the thread has exited
  bool ended() const { return ended_.load(std::memory_order_acquire); }

 private:
  const std::uint32_t thread_;
  std::atomic<bool> ended_ = false;
  alignas(64) std::atomic<std::uint64_t> written_ = 0;
  alignas(64) std::atomic<std::uint64_t> read_ = 0;
  alignas(64) std::array<TraceEntry, kEntries> entries_;
};

// The tables that the numbers in entries refer to.
class TraceTables {
 public:
  std::uint32_t add_communicator(const std::shared_ptr<Deadlines>& deadlines, const char* provider);
  std::uint64_t add_name(const std::string& text);  // the same number for the same text
  void update();                                    // reads names of communicators again

  const std::vector<std::string>& communicators() const { return communicators_; }  // JSON
  const std::vector<std::string>& names() const { return names_; }

 private:
  struct Source {
    std::weak_ptr<Deadlines> deadlines;
    const char* provider;
  };
  std::vector<Source> sources_;
  std::vector<std::string> communicators_;
  std::vector<std::string> names_;
};

// Encodes a limited number of entries.
class TraceWriter {
 public:
  TraceWriter(bool timed, std::uint64_t entries);

  // Makes room for an entry. Returns false if there is none.
  bool reserve() {
    if (left_ == 0) return drop(), false;
    return --left_, true;
  }
  void write(const TraceEntry& entry) {
    entries_.append(reinterpret_cast<const char*>(&entry), sizeof entry);
  }
  void drop() { ++dropped_; }
  // Returns the bytes since the last call. New table entries precede the entries that use them, so
  // that any prefix of a file can be read.
  std::string take(const TraceTables& tables);
  std::string take_last(const TraceTables& tables);

 private:
  void write_block(char type, std::string_view text);

  std::string bytes_;
  std::string entries_;
  std::uint64_t left_;
  std::uint64_t dropped_ = 0;
  std::vector<std::string> communicators_;
  std::size_t names_ = 0;
};

// A recording of a limited number of bytes.
class TraceFile {
 public:
  TraceFile(std::string path, std::uint64_t bytes)
      : path_(std::move(path)), writer_(false, bytes / sizeof(TraceEntry)) {}

  void write(const TraceEntry& entry);
  void flush(const TraceTables& tables) noexcept;
  std::string finish(const TraceTables& tables);  // see TraceState::stop_recording()

 private:
  void write_all(std::string_view bytes);

  const std::string path_;
  std::string name_;  // once the file exists
  std::unique_ptr<common::NewFile> file_;
  TraceWriter writer_;
  bool used_ = false;
  int error_ = 0;
};

// The events of an entry until their times are known. With in_graph, each launch of the captured
// graph records them, and they are not reused.
struct TraceTimes {
  TraceTimes(TraceClock& clock_of_device, CUstream stream, bool is_in_graph);
  ~TraceTimes();
  void end(CUstream stream);
  bool done() const;
  void read(TraceEntry& entry) const;

  TraceClock& clock;
  const bool in_graph;
  PooledEvent began;
  std::optional<PooledEvent> ended;
};

class TraceState {
 public:
  static TraceState& get();  // a forked child has a new one, without a trace
  // Differs in a forked child.
  static std::uint32_t generation() { return generation_.load(std::memory_order_relaxed); }

  TraceLog& make_log();
  std::uint32_t number_of(Communicator& communicator);
  std::uint64_t name(const std::string& text);  // returns its number, for entries
  // The clock of a device, for an event of the trace. Throws DriverFailure if the device cannot
  // create events.
  TraceClock& clock(const std::shared_ptr<Library>& library, int device);

  // Adds a captured operation of entry.graph. The operations of a group have no times, only the end
  // of the group does.
  void add_captured(const TraceEntry& entry, std::unique_ptr<TraceTimes> times);
  // Called around a graph launch. The times of a launch are read if it is complete when the graph
  // is launched again, or when the trace ends.
  void before_launch(std::uint64_t graph);
  void after_launch(const TraceEntry& launch, const TraceClock& clock, CUstream stream);

  // Starts a trace in memory of at most this many operations. Further operations are only counted.
  // With graphs, operations captured from now on are timed in each launch. Throws
  // std::invalid_argument if a trace is already on.
  void start(std::uint64_t operations, bool graphs);
  // Waits up to the limit for the traced work to finish, and returns the trace in the format of a
  // recording.
  std::string stop(double seconds);
  // Starts a recording of at most this many bytes. The file is created at the first operation. Its
  // name is the path with the rank of the process, or "pid" and its process id, before the suffix.
  void start_recording(const std::string& path, std::uint64_t bytes);
  // Returns the name of the file, empty if nothing was recorded. Throws std::system_error if
  // writing failed.
  std::string stop_recording();
  void collect();  // moves entries from the logs to the outputs
  void wake() { changed_.notify_all(); }

 private:
  void collect_locked();
  void take(const TraceEntry& entry);
  void resolve(bool last);
  bool resolve_launches();  // returns whether all are resolved
  void switch_on(unsigned mode);
  void switch_off(unsigned mode);
  std::vector<TraceClock*> update_clocks();  // returns those in use
  void run();
  static void reset_child() noexcept;

  struct Pending {
    TraceEntry entry;
    std::unique_ptr<TraceTimes> times;
  };

  struct CapturedGraph {
    std::vector<Pending> operations;
    std::int64_t called = 0;              // the time of the last launch
    std::optional<PooledEvent> launched;  // recorded after it; reset once its times are read
  };
  bool resolve_launch(CapturedGraph& graph);

  inline static std::atomic<std::uint32_t> generation_ = 1;
  static const int fork_handler_;  // registered when the library is loaded, like per_process()

  std::mutex logs_mutex_;
  std::vector<std::unique_ptr<TraceLog>> logs_;
  std::mutex clocks_mutex_;
  std::vector<std::unique_ptr<TraceClock>> clocks_;
  std::mutex tables_mutex_;
  TraceTables tables_;
  std::mutex mutex_;  // guards the following
  std::condition_variable changed_;
  bool running_ = false;
  std::optional<TraceWriter> memory_;
  std::deque<Pending> pending_;  // entries of the trace, in the order of each thread's calls
  std::map<std::uint64_t, CapturedGraph> captured_;  // by capture number
  std::optional<TraceFile> file_;
};

}  // namespace pynccl

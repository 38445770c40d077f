// TraceState: what the traces and recordings of a process have: the logs of the threads, the
// communicators, the clocks of the devices, and where entries go.
#pragma once

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "watch/trace_clock.h"
#include "watch/trace_log.h"
#include "watch/trace_modes.h"
#include "watch/trace_output.h"

namespace pynccl {

class Communicator;

// The events of an entry, until their times are known. With in_graph they are recorded by each
// launch of the graph that the stream is captured into, and never used again.
struct TraceTimes {
  TraceTimes(const TraceClock& clock_of_device, CUstream stream, bool is_in_graph);
  ~TraceTimes();
  TraceTimes(const TraceTimes&) = delete;
  TraceTimes& operator=(const TraceTimes&) = delete;
  void end(CUstream stream);
  bool done() const;
  void read(TraceEntry& entry) const;

  const TraceClock& clock;
  const bool in_graph;
  PooledEvent began;
  std::optional<PooledEvent> ended;
};

class TraceState {
 public:
  static TraceState& get();  // the child of a fork has a new one, and no trace
  // Another number in the child of a fork.
  static std::uint32_t generation() { return generation_.load(std::memory_order_relaxed); }

  TraceLog& make_log();
  std::uint32_t number_of(Communicator& communicator);
  std::uint64_t name(const std::string& text);  // its number, for entries
  // Throws DriverFailure where the device has no events.
  const TraceClock& clock(const std::shared_ptr<Library>& library, int device);

  // Captured operations, of a graph that the entry names. Those of a group have no times: the end
  // of the group has.
  void add_captured(const TraceEntry& entry, std::unique_ptr<TraceTimes> times);
  // Around the launch of a graph. Its captured operations have the times of a launch if that was
  // done when the graph is launched again, or when the trace ends.
  void before_launch(std::uint64_t graph);
  void after_launch(const TraceEntry& launch, const TraceClock& clock, CUstream stream);

  void start(std::uint64_t operations, bool graphs);
  std::string stop(double seconds);
  void start_recording(const std::string& path, std::uint64_t bytes);
  std::string stop_recording();
  void collect();  // moves what the logs have on
  void wake() { changed_.notify_all(); }

 private:
  void collect_locked();
  void take(const TraceEntry& entry);
  void resolve(bool last);
  bool resolve_launches();  // whether all are done
  void switch_on(unsigned mode);
  void switch_off(unsigned mode);
  void run();
  static void reset_child() noexcept;

  struct Pending {
    TraceEntry entry;
    std::unique_ptr<TraceTimes> times;
  };

  struct CapturedGraph {
    std::vector<Pending> operations;
    std::int64_t called = 0;              // the last launch
    std::optional<PooledEvent> launched;  // after it, until its times were read
  };
  bool resolve_launch(CapturedGraph& graph);

  inline static std::atomic<std::uint32_t> generation_ = 1;
  static const int fork_handler_;  // registered when the library is loaded, as per_process()

  std::mutex logs_mutex_;
  std::vector<std::unique_ptr<TraceLog>> logs_;
  std::mutex clocks_mutex_;
  std::vector<std::unique_ptr<TraceClock>> clocks_;
  std::mutex tables_mutex_;
  TraceTables tables_;
  std::mutex mutex_;  // of the following
  std::condition_variable changed_;
  bool running_ = false;
  std::optional<TraceMemory> memory_;
  std::deque<Pending> pending_;  // of the trace, in the order of the calls of a thread
  std::map<std::uint64_t, CapturedGraph> captured_;  // by the numbers of their captures
  std::optional<TraceFile> file_;
};

}  // namespace pynccl

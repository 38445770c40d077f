// TraceState: the state of the traces and recordings of a process: the logs of the threads, the
// communicators, the clocks of the devices, and the outputs.
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

// The events of an entry until their times are known. With in_graph, each launch of the captured
// graph records them, and they are not reused.
struct TraceTimes {
  TraceTimes(const TraceClock& clock_of_device, CUstream stream, bool is_in_graph);
  ~TraceTimes();
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
  static TraceState& get();  // a forked child has a new one, without a trace
  // Differs in a forked child.
  static std::uint32_t generation() { return generation_.load(std::memory_order_relaxed); }

  TraceLog& make_log();
  std::uint32_t number_of(Communicator& communicator);
  std::uint64_t name(const std::string& text);  // returns its number, for entries
  // Throws DriverFailure if the device cannot create events.
  const TraceClock& clock(const std::shared_ptr<Library>& library, int device);

  // Adds a captured operation of entry.graph. The operations of a group have no times, only the end
  // of the group does.
  void add_captured(const TraceEntry& entry, std::unique_ptr<TraceTimes> times);
  // Called around a graph launch. The times of a launch are read if it is complete when the graph
  // is launched again, or when the trace ends.
  void before_launch(std::uint64_t graph);
  void after_launch(const TraceEntry& launch, const TraceClock& clock, CUstream stream);

  void start(std::uint64_t operations, bool graphs);
  std::string stop(double seconds);
  void start_recording(const std::string& path, std::uint64_t bytes);
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
  std::vector<TraceClock*> update_clocks();
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
  std::optional<TraceMemory> memory_;
  std::deque<Pending> pending_;  // entries of the trace, in the order of each thread's calls
  std::map<std::uint64_t, CapturedGraph> captured_;  // by capture number
  std::optional<TraceFile> file_;
};

}  // namespace pynccl

// Tracing: while a trace or a recording is on, each operation of this process leaves an entry, and
// so do waits, launches of graphs and ranges of the user. A trace has the times of the devices and
// is kept in memory; a recording has none and is a file: docs/trace.md.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/observer.h"
#include "comm/operation.h"
#include "watch/trace_entry.h"
#include "watch/trace_modes.h"

namespace pynccl {

struct TraceTimes;  // the events of an entry

class Trace : public TraceModes {
 public:
  static void observe();

  // A trace in memory with at most so many operations; what comes later is counted only. With
  // graphs, operations that are captured from now on have times in each launch. Throws
  // std::invalid_argument where there is one.
  static void start(std::uint64_t operations, bool graphs);
  // Waits until what was traced is done, at most so long, and returns the trace in the form of a
  // recording.
  static std::string stop(double seconds);

  // A recording of at most so many bytes: the file is made at the first operation. Its name is the
  // path, with the rank of the process, or "pid" and its process id, before the suffix.
  static void start_recording(const std::string& path, std::uint64_t bytes);
  // The name of the file; empty where nothing was recorded. Throws std::system_error where writing
  // has failed.
  static std::string stop_recording();
  // Called before and after each operation of a trace with marks.
  using Mark = void (*)(const char* operation, bool begins);
  static void set_mark(Mark mark) { mark_.store(mark); }

  // A range of the user. Where library is given, its times are those of the stream. Returns its
  // number, 0 where there is no trace.
  static std::uint64_t begin_range(const std::string& name, bool compute,
                                   const std::shared_ptr<Library>& library, CUstream stream);
  static void end_range(std::uint64_t number, const std::shared_ptr<Library>& library,
                        CUstream stream);

 private:
  friend class TraceCall;
  friend class TraceGroup;
  friend class TraceLaunch;
  friend class TraceWait;

  class Sink;

  // An operation of a recording.
  static void record(const OperationEvent& event);
  static void record_failure(Communicator& communicator);  // of its last operation
  static void open_window(Communicator& communicator, const WindowEvent& window);
  static void close_window(Communicator& communicator, std::uint64_t number);
  template <class Fill>
  static void append_filled(Fill&& fill);
  static void append(const TraceEntry& entry);
  static std::uint32_t number_of(Communicator& communicator);
  static std::uint32_t add_communicator(Communicator& communicator);
  static void append_signals(const TraceEntry& wait, const Operation& o);
  static void mark(const char* operation, bool begins) {
    if (const Mark mark = mark_.load(std::memory_order_relaxed)) mark(operation, begins);
  }

  inline static std::atomic<Mark> mark_ = nullptr;
};

// An operation outside of a group, from before its call to after it.
class TraceCall final : public Observation {
 public:
  explicit TraceCall(const OperationEvent& event);
  ~TraceCall() override;  // it has failed, unless succeeded() was called
  TraceCall(const TraceCall&) = delete;
  TraceCall& operator=(const TraceCall&) = delete;

  void succeeded() override;

  // In memory of the thread.
  static void* operator new(std::size_t bytes);
  static void operator delete(void* memory);

 private:
  void fill(TraceEntry& entry) const;

  Communicator& communicator_;
  const Operation& operation_;
  const std::int64_t now_;
  const OperationKind kind_;
  std::uint8_t flags_ = TraceEntry::kFailed;
  std::uint64_t sequence_ = 0, number_ = 0, graph_ = 0;
  std::unique_ptr<TraceTimes> times_;
};

// The operations that this thread issues as a group, from before ncclGroupStart to after
// ncclGroupEnd.
class TraceGroup {
 public:
  TraceGroup();
  ~TraceGroup();
  TraceGroup(const TraceGroup&) = delete;
  TraceGroup& operator=(const TraceGroup&) = delete;

  void use(Communicator& communicator, CUstream stream);  // that an operation will have
  // In place of a TraceCall.
  static void add(Communicator& communicator, const Operation& o);
  void succeeded() { flags_ = 0; }

 private:
  struct Used {
    const Library* library;
    int device;
    CUstream stream;
    bool blocks;
    std::uint64_t graph;
    std::unique_ptr<TraceTimes> times;
  };

  const std::uint32_t number_;
  std::int64_t called_;
  std::uint8_t flags_ = TraceEntry::kFailed;
  std::vector<Used> used_;
  TraceGroup* const outer_;
};

// A launch of a graph that no capture records.
class TraceLaunch final : public Observation {
 public:
  explicit TraceLaunch(const LaunchEvent& event);
  ~TraceLaunch() override;
  TraceLaunch(const TraceLaunch&) = delete;
  TraceLaunch& operator=(const TraceLaunch&) = delete;

 private:
  CUstream stream_ = nullptr;
  std::unique_ptr<TraceTimes> times_;
  TraceEntry entry_;
};

// A wait, from before its call to after it.
class TraceWait final : public Observation {
 public:
  using What = WaitEvent::What;

  // Of the calling thread, for a stream or an event.
  explicit TraceWait(What what, CUstream waited_for = nullptr);
  // Of a stream; of the calling thread where that is the stream.
  TraceWait(What what, const std::shared_ptr<Library>& library, int device, CUstream stream);
  ~TraceWait() override;
  TraceWait(const TraceWait&) = delete;
  TraceWait& operator=(const TraceWait&) = delete;

  // What is waited for.
  void of(Communicator& communicator, std::uint64_t sequence);
  void of(const Event& event);

 private:
  const bool on_;
  std::shared_ptr<Library> library_;  // where there are times_
  CUstream stream_ = nullptr;
  std::unique_ptr<TraceTimes> times_;
  TraceEntry entry_;
};

}  // namespace pynccl

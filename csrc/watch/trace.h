// Trace: while a trace or a recording is on, each operation of this process appends an entry, as do
// waits, graph launches and user ranges. A trace is in memory and includes device times. A
// recording is a file without device times (docs/trace.md).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/observer.h"
#include "comm/operation.h"
#include "watch/trace_state.h"

namespace pynccl {

class Trace : public TraceModes {
 public:
  static void observe();

  // Begins a user range. With a library, its times are those of the stream. Returns its number, or
  // 0 if no trace is on.
  static std::uint64_t begin_range(const std::string& name, bool compute,
                                   const std::shared_ptr<Library>& library, CUstream stream);
  static void end_range(std::uint64_t number, const std::shared_ptr<Library>& library,
                        CUstream stream);
};

// The operations that this thread issues as a group, from before ncclGroupStart to after
// ncclGroupEnd.
class TraceGroup {
 public:
  TraceGroup();
  ~TraceGroup();
  TraceGroup(const TraceGroup&) = delete;
  TraceGroup& operator=(const TraceGroup&) = delete;

  void use(Communicator& communicator, CUstream stream);  // for an operation to be issued
  // Adds an operation to the open group of this thread, if any.
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

// A wait, from before its call to after it.
class TraceWait final : public Observation {
 public:
  using What = WaitEvent::What;

  // By the calling thread, for a stream or an event.
  explicit TraceWait(What what, CUstream waited_for = nullptr);
  // By a stream, or by the calling thread if it is the stream.
  TraceWait(What what, const std::shared_ptr<Library>& library, int device, CUstream stream);
  ~TraceWait() override;

  // The target of the wait.
  void of(Communicator& communicator, std::uint64_t sequence);
  void of(const Event& event);

 private:
  const bool on_;
  std::shared_ptr<Library> library_;  // set if times_ is
  CUstream stream_ = nullptr;
  std::unique_ptr<TraceTimes> times_;
  TraceEntry entry_;
};

}  // namespace pynccl

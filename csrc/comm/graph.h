// A CUDA graph, or hostnccl's: the work enqueued on a stream during a capture, launched as one call
// any number of times. A graph records which communicators it uses. ncclCommDestroy waits for the
// graphs of a communicator without limit, so closing a communicator invalidates its graphs first;
// launching an invalidated graph is an error that names the communicator.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/event_pool.h"
#include "comm/stream.h"

namespace pynccl {

class Graph {
 public:
  static void observe();  // connects graphs to communicators; see watch/observers.h

  // device below 0: the thread's current one.
  Graph(std::shared_ptr<Library> library, CUstream stream, int device, CUstreamCaptureMode mode);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // Begins and ends the capture, on one thread. A graph is captured once; end(true) discards it.
  void begin();
  void end(bool failed);

  // Throws std::invalid_argument where there is nothing to launch. The deadlines of the
  // communicators apply to a launch, unless a capture records it.
  void launch(CUstream stream) const;
  void upload(CUstream stream) const;
  void close();  // launches in progress complete; closing twice is allowed

  const Library& library() const { return *library_; }
  CUstream stream() const { return stream_; }
  std::size_t size() const { return size_; }  // nodes
  std::string text() const;                   // its state

  // The functions below concern all captures in progress, of all threads.

  // While it exists, a call is made that would invalidate captures. A capture begins after it, or
  // when the call has lasted so long that it has looked for captures.
  class DeviceWait {
   public:
    DeviceWait() { device_waits_.fetch_add(1); }
    ~DeviceWait() { device_waits_.fetch_sub(1); }
    DeviceWait(const DeviceWait&) = delete;
    DeviceWait& operator=(const DeviceWait&) = delete;
    bool allowed() const { return captures_.load() == 0; }
  };
  // Whether there is one: a single load.
  static bool any_capture() { return captures_.load(std::memory_order_relaxed) != 0; }
  // Keeps an object alive as long as the graph that the stream is captured into. False where the
  // stream is not captured by a Graph.
  static bool hold(const Library& library, CUstream stream, std::shared_ptr<void> object);
  // The streams of the last launches of a graph, for functions in it.
  class Launches {
   public:
    void add(CUstream stream);
    std::vector<CUstream> streams(std::int64_t& since) const;  // since: the first of the launches

   private:
    struct One {
      CUstream stream;
      std::int64_t time;
    };
    mutable std::mutex mutex_;
    std::deque<One> last_;
  };
  // Of the graph that the stream is captured into by a Graph; else null.
  static std::shared_ptr<const Launches> launches(const Library& library, CUstream stream);
  // The stream that this thread captures, where it captures one and current is not captured;
  // otherwise current.
  static CUstream redirect(const Library& library, CUstream current);

 private:
  enum class State { kNew, kCapturing, kReady, kFailed, kInvalidated, kClosed };

  class Uses;

  // Owns the CUgraphExec; launches in progress share it.
  class Exec;
  // A communicator, and its operations in the graph.
  struct Used {
    std::shared_ptr<Communicator> communicator;
    std::vector<std::uint64_t> operations;    // their numbers
    std::shared_ptr<const std::string> what;  // a launch is, for this communicator

    std::string text() const;
  };
  // What a closed graph leaves: its executable if that cannot be freed yet, and what its launches
  // use, kept until they have completed.
  struct Retired {
    std::shared_ptr<const PooledEvent> launched;
    std::vector<Used> used;
    std::vector<std::shared_ptr<void>> held;
    std::shared_ptr<const Exec> exec;

    bool in_use() const noexcept;
  };

  struct Destroy {
    const Library* library;
    void operator()(CUgraph graph) const;
  };
  struct Captured {
    CUresult result;
    std::unique_ptr<CUgraph_st, Destroy> graph;
  };

  Captured end_capture();
  void finish(std::shared_ptr<const Exec> made, std::size_t size);
  void retire() noexcept;
  std::shared_ptr<const Exec> exec() const;
  void check_expired(const std::string& cause = {}) const;
  void watch_launch(CUstream stream) const;
  static bool uses(const std::vector<Used>& used, const Communicator& communicator);
  std::string why_not_ready() const;
  static void free_retired() noexcept;  // frees what is no longer in use
  static std::vector<Retired>& retired();
  static void count_capture(int change);
  static Graph* captured_into(const Library& library, cuuint64_t id);
  // The graph that the stream is captured into now uses the communicator.
  static void add_use(Communicator& communicator, CUstream stream);
  // The communicator is about to be freed. Throws std::invalid_argument where a capture in progress
  // uses it, unless it is an abort.
  static void invalidate_for(const Communicator& communicator, bool aborted);

  inline static std::atomic<int> captures_ = 0;
  inline static std::atomic<int> device_waits_ = 0;

  const std::shared_ptr<Library> library_;
  const CUstream stream_;
  int device_;  // below 0 until the capture begins: the current one
  const CUstreamCaptureMode mode_;
  const std::shared_ptr<Launches> launches_ = std::make_shared<Launches>();
  mutable std::mutex launching_;  // one launch at a time: their order on the device
  std::shared_ptr<EventPool> events_;
  // Recorded after the last launch; null before the first.
  mutable std::shared_ptr<const PooledEvent> launched_;
  // Guarded by the lock of all graphs:
  State state_ = State::kNew;
  std::thread::id thread_;
  cuuint64_t id_ = 0;  // of the capture
  std::size_t size_ = 0;
  std::shared_ptr<const Exec> exec_;
  std::vector<Used> used_;  // changed by a capture, and by retire() under launching_
  std::vector<std::shared_ptr<void>> held_;
  std::string closed_communicator_;  // its close invalidated the graph
};

}  // namespace pynccl

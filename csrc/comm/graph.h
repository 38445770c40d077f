// Graph: a CUDA graph or a graph of hostnccl. It captures the work enqueued on a stream, and
// launches it any number of times. A graph records which communicators it uses. ncclCommDestroy
// waits for the graphs of a communicator without limit, so closing a communicator first invalidates
// its graphs. Launching an invalidated graph is an error that names the communicator.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/stream.h"

namespace pynccl {

class Graph {
 public:
  static void observe();  // connects graphs to communicators; see watch/observers.h

  // A negative device is the thread's current one.
  Graph(std::shared_ptr<Library> library, CUstream stream, int device, CUstreamCaptureMode mode);
  ~Graph();

  // Begins and ends the capture, on the same thread. A graph can be captured only once. end(true)
  // discards it.
  void begin();
  void end(bool failed);

  // Throws std::invalid_argument if there is nothing to launch, or the stream is being captured.
  // The deadlines of the communicators apply to the launch.
  void launch(CUstream stream) const;
  void close();  // launches in progress complete; closing twice is allowed

  const Library& library() const { return *library_; }
  std::size_t size() const { return size_; }  // nodes
  std::string text() const;                   // its state

  // The functions below concern all captures in progress, of all threads.

  // The scope of a driver call that would invalidate captures. A capture waits briefly for such
  // scopes before it begins, long enough that any longer one has checked allowed().
  class DeviceWait {
   public:
    DeviceWait() { device_waits_.fetch_add(1); }
    ~DeviceWait() { device_waits_.fetch_sub(1); }
    DeviceWait(const DeviceWait&) = delete;
    DeviceWait& operator=(const DeviceWait&) = delete;
    bool allowed() const { return captures_.load() == 0; }
  };
  // Whether there is any; a single load.
  static bool any_capture() { return captures_.load(std::memory_order_relaxed) != 0; }
  // Keeps an object alive as long as the graph that the stream is captured into. Returns false if
  // the stream is not captured by a Graph.
  static bool keep_alive(const Library& library, CUstream stream, std::shared_ptr<void> object);
  // The streams of a graph's last launches, for host functions in the graph that fail.
  class Launches {
   public:
    void add(CUstream stream);
    std::vector<CUstream> streams(std::int64_t& since) const;  // since: the first launch

   private:
    struct Launch {
      CUstream stream;
      std::int64_t time;
    };
    mutable std::mutex mutex_;
    std::deque<Launch> last_;
  };
  // The launches of the Graph that the stream is captured into; null without one.
  static std::shared_ptr<const Launches> launches(const Library& library, CUstream stream);
  // The stream that this thread captures, if there is one and current is not being captured itself;
  // otherwise current.
  static CUstream redirect(const Library& library, CUstream current);

 private:
  enum class State { kNew, kCapturing, kReady, kFailed, kInvalidated, kClosed };

  class Uses;
  using Exec = std::shared_ptr<CUgraphExec_st>;  // launches in progress share it

  // A communicator and its operations in the graph.
  struct Used {
    std::shared_ptr<Communicator> communicator;
    std::vector<std::uint64_t> operations;    // sequence numbers
    std::shared_ptr<const std::string> what;  // describes a launch to this communicator's deadlines

    std::string text() const;
  };
  // The resources of a closed graph, kept until its launches have completed, and until its
  // executable can be freed.
  struct Retired {
    std::shared_ptr<const PooledEvent> launched;
    std::vector<Used> used;
    std::vector<std::shared_ptr<void>> held;
    Exec exec;

    bool in_use() const noexcept;
  };

  std::pair<CUresult, std::shared_ptr<CUgraph_st>> end_capture();
  void retire() noexcept;
  Exec exec() const;
  void check_expired(const std::string& cause = {}) const;
  void watch_launch(CUstream stream) const;
  std::string why_not_ready() const;
  static void free_retired() noexcept;  // frees the resources that are no longer in use
  static std::vector<Retired>& retired();
  static void count_capture(int change);
  static Graph* captured_into(const Library& library, cuuint64_t id);

  inline static std::atomic<int> captures_ = 0;
  inline static std::atomic<int> device_waits_ = 0;

  const std::shared_ptr<Library> library_;
  const CUstream stream_;
  int device_;  // may be negative (the current device) until the capture begins
  const CUstreamCaptureMode mode_;
  const std::shared_ptr<Launches> launches_ = std::make_shared<Launches>();
  mutable std::mutex launching_;  // serializes launches
  std::shared_ptr<EventPool> events_;
  // Recorded after the last launch; null before the first.
  mutable std::shared_ptr<const PooledEvent> launched_;
  // Guarded by graphs_mutex:
  State state_ = State::kNew;
  std::thread::id thread_;
  cuuint64_t id_ = 0;  // of the capture
  std::size_t size_ = 0;
  Exec exec_;
  std::vector<Used> used_;  // changed by a capture, and by retire() under launching_
  std::vector<std::shared_ptr<void>> held_;
  std::string closed_communicator_;  // the communicator whose close invalidated the graph
};

}  // namespace pynccl

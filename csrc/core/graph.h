// A CUDA graph (or hostnccl's): the work that a stream was given while it was captured, launched as
// one call any number of times. It knows which communicators it needs: NCCL would wait without end
// for the graphs of a communicator that is destroyed, so closing one makes its graphs unusable
// first, and launching such a graph is an error that says so.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "core/communicator.h"
#include "core/stream.h"

namespace pynccl {

class Graph {
 public:
  // device below 0: the thread's current one.
  Graph(std::shared_ptr<Library> library, CUstream stream, int device, CUstreamCaptureMode mode);
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  // The capture, by one thread. A graph is captured once; end(true) drops what was captured.
  void begin();
  void end(bool failed);

  // Throws std::invalid_argument where there is nothing to launch.
  void launch(CUstream stream) const;
  void upload(CUstream stream) const;
  void close();  // what was launched still runs; does nothing when closed already

  const Library& library() const { return *library_; }
  CUstream stream() const { return stream_; }
  std::size_t size() const { return size_; }  // nodes
  std::string text() const;                   // its state

  // What follows concerns the captures that are under way, in all threads.

  // One load where there are none.
  static bool any_capture() { return captures_.load(std::memory_order_relaxed) != 0; }
  // The communicator's next operation on the stream belongs to its graph, if there is one.
  static void note(const std::shared_ptr<Communicator>& communicator, CUstream stream);
  // Keeps an object as long as the graph that the stream is captured into; false if that is none of
  // ours.
  static bool hold(const Library& library, CUstream stream, std::shared_ptr<void> object);
  // In a thread that is capturing, the stream instead of one that is not.
  static CUstream redirect(const Library& library, CUstream current);

  // The communicator is about to be freed. A capture that uses it is told to end first, unless it
  // must be (by an abort).
  static void let_go(const Communicator& communicator, bool forced);

 private:
  enum class State { kNew, kCapturing, kReady, kFailed, kBroken, kClosed };

  // Owns the CUgraphExec; launches in progress share it.
  class Exec;
  // What a graph keeps, until its launches are over.
  struct Kept {
    std::shared_ptr<Event> launched;
    std::shared_ptr<const Exec> exec;
    std::vector<std::shared_ptr<Communicator>> communicators;
    std::vector<std::shared_ptr<void>> held;

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

  Captured take_captured();  // ends the stream's capture
  void finish(std::shared_ptr<const Exec> made, std::size_t size);
  void drop() noexcept;
  std::shared_ptr<const Exec> exec() const;
  bool uses(const Communicator& communicator) const;
  std::string why_not() const;
  static void sweep() noexcept;  // forgets what is no longer in use
  static std::vector<Kept>& left_behind();
  static Graph* captured_into(const Library& library, cuuint64_t id);

  inline static std::atomic<int> captures_ = 0;

  const std::shared_ptr<Library> library_;
  const CUstream stream_;
  const int device_;
  const CUstreamCaptureMode mode_;
  mutable std::mutex launching_;  // one launch at a time, which is their order on the device too
  mutable std::shared_ptr<Event> launched_;  // recorded after the last launch; none: there was none
  // Under the lock of all graphs:
  State state_ = State::kNew;
  std::thread::id thread_;
  cuuint64_t id_ = 0;  // of the capture
  std::size_t size_ = 0;
  std::shared_ptr<const Exec> exec_;
  std::vector<std::shared_ptr<Communicator>> communicators_;
  std::vector<std::shared_ptr<void>> held_;
  std::string lost_;  // the communicator that is gone
};

}  // namespace pynccl

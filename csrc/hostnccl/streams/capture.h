// A capture under way: work for the streams that take part in it is recorded into a graph instead
// of run. It begins on one stream; others join it by waiting for an event that was recorded in it,
// and must be joined by that one in the same way before it ends. The rules, and the errors of who
// breaks them, are CUDA's. Everything here is under one lock.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "abi/driver_types.h"
#include "hostnccl/streams/event.h"
#include "hostnccl/streams/graph.h"
#include "hostnccl/streams/stream.h"

namespace hostnccl {

class Capture {
 public:
  using Streams = std::vector<Ref<Stream>>;

  struct Info {
    abi::CUstreamCaptureStatus status = abi::CU_STREAM_CAPTURE_STATUS_NONE;
    uint64_t id = 0;
  };

  static void begin(const Ref<Stream>& stream, abi::CUstreamCaptureMode mode);
  // Frees the streams, also where it throws.
  static std::unique_ptr<Graph> end(const Ref<Stream>& stream);
  static Info info(const Ref<Stream>& stream);

  // Work after all that these streams, which are capturing, have recorded.
  static void record(const Streams& streams, Graph::Work work);
  static std::shared_ptr<Event::Record> mark(const Ref<Stream>& stream);  // for an event
  // The stream, capturing or not, comes after a place in a capture.
  static void join(const Ref<Stream>& stream, const Place& place);

  // Calls that a capture forbids; they invalidate it. Each throws if it does.
  static void refuse(const Ref<Stream>& stream, abi::CUresult error);  // none, or not capturing: no
  static void refuse(const Event::Record* record);                     // one of a capture
  static void refuse_in_other_captures();  // by the modes of this thread and of the captures
  // The handle of a stream is gone: if the capture began on it, nobody can end it any more.
  static void leave(const Ref<Stream>& stream);
  static abi::CUstreamCaptureMode exchange_mode(abi::CUstreamCaptureMode mode);

  Capture(const Ref<Stream>& origin, abi::CUstreamCaptureMode mode);

 private:
  void invalidate() { valid_ = false; }
  void check_valid() const;
  void add(const Ref<Stream>& stream, std::vector<size_t> after);
  void detach_all();
  static Place& place_of(const Ref<Stream>& stream);

  const uint64_t id_;
  const abi::CUstreamCaptureMode mode_;
  const std::thread::id thread_ = std::this_thread::get_id();
  bool valid_ = true;
  bool ended_ = false;
  Streams streams_;  // the first is the one on which it began; their numbers are the branches
  std::unique_ptr<Graph> graph_ = std::make_unique<Graph>();
};

}  // namespace hostnccl

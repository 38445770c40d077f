// A stream capture in progress: work for its streams becomes nodes of a graph instead of running.
//
// It begins on the origin stream. Another stream enters it by waiting for an event recorded in it
// (fork). Before the capture ends, the origin stream must wait for an event recorded after the work
// of that stream (join). The rules, and the error for breaking each of them, are CUDA's. One lock
// guards all captures.
#pragma once

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "abi/driver_types.h"
#include "hostnccl/streams/event_record.h"
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

  static void begin(const Ref<Stream>& origin, abi::CUstreamCaptureMode mode);
  // With the wrong stream or thread, throws and leaves the streams capturing. Otherwise they stop
  // capturing, even if the capture is invalid and this throws.
  static std::unique_ptr<Graph> end(const Ref<Stream>& origin);
  static Info info(const Ref<Stream>& stream);

  // Adds a node that depends on everything captured on these streams, all of which are capturing.
  static void add_node(const Streams& streams, Graph::Payload payload);
  static std::shared_ptr<EventRecord> record_event(const Ref<Stream>& stream);
  // Orders the stream after a position in a capture. A stream that is not capturing enters it.
  static void wait_for_position(const Ref<Stream>& stream, const CapturePosition& position);

  // Checks of calls that are not permitted during a capture. If a check fails, it invalidates the
  // capture and throws. A null stream or record passes.
  static void check_not_capturing(const Ref<Stream>& stream, abi::CUresult error);
  static void check_not_captured(const EventRecord* record);
  static void check_nothing_captured();  // by any stream
  // For calls that CUDA documents as potentially unsafe: by the modes of this thread and of each
  // capture.
  static void check_unsafe_call();

  // The stream's handle was closed. A capture that began on it ends, since nothing can end it
  // later.
  static void on_stream_destroyed(const Ref<Stream>& stream);
  static abi::CUstreamCaptureMode exchange_thread_mode(abi::CUstreamCaptureMode mode);

  Capture(const Ref<Stream>& origin, abi::CUstreamCaptureMode mode);

 private:
  void invalidate() { valid_ = false; }
  void check_valid() const;
  void add_stream(const Ref<Stream>& stream, std::vector<size_t> dependencies);
  void detach_streams();
  static CapturePosition& position_of(const Ref<Stream>& stream);

  const uint64_t id_;
  const abi::CUstreamCaptureMode mode_;
  const std::thread::id thread_ = std::this_thread::get_id();
  bool valid_ = true;
  bool ended_ = false;
  Streams streams_;  // a stream's index is its branch; the origin is the first
  std::unique_ptr<Graph> graph_ = std::make_unique<Graph>();
};

}  // namespace hostnccl

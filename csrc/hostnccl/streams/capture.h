// Capture: a stream capture in progress. Work for its streams does not run, but becomes nodes of a
// graph.
//
// It begins on the origin stream. Another stream enters it when it waits for an event recorded in
// it (fork). Before the capture ends, the origin stream must wait for an event recorded after the
// work of that stream (join). The rules and their errors are CUDA's. One lock guards all captures.
#pragma once

#include <memory>
#include <thread>
#include <vector>

#include "abi/driver_types.h"
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
  // For the wrong stream or thread, throws and leaves the streams capturing. Otherwise they stop
  // capturing, even if this throws because the capture is invalid.
  static std::unique_ptr<Graph> end(const Ref<Stream>& origin);
  static Info info(const Ref<Stream>& stream);

  // Adds a node that depends on all work captured on these streams, which must be capturing.
  static void add_node(const Streams& streams, Graph::Payload payload);
  static std::shared_ptr<EventRecord> record_event(const Ref<Stream>& stream);
  // Orders the stream after a position in a capture. A stream that is not capturing enters it.
  static void wait_for_position(const Ref<Stream>& stream, const CapturePosition& position);

  // Checks of calls that are not permitted during a capture. A check that fails invalidates the
  // capture and throws. A null stream or record passes.
  static void check_not_capturing(const Ref<Stream>& stream, abi::CUresult error);
  static void check_not_captured(const EventRecord* record);
  static void check_nothing_captured();  // by any stream
  // For calls that CUDA documents as potentially unsafe. Depends on the modes of this thread and of
  // each capture.
  static void check_unsafe_call();

  // Called when the stream's handle was closed. Ends a capture that began on it, because no later
  // call can do so.
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
  Streams streams_;  // the index of a stream is its branch. The first is the origin
  std::unique_ptr<Graph> graph_ = std::make_unique<Graph>();
};

}  // namespace hostnccl

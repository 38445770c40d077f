#include "hostnccl/streams/capture.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "hostnccl/base/thread.h"
#include "hostnccl/streams/device_error.h"

namespace hostnccl {
namespace {

using namespace abi;

std::mutex captures_mutex;
uint64_t last_id = 0;

std::vector<Capture*>& open_captures() { return immortal<std::vector<Capture*>>(); }

std::atomic<size_t> open_count{0};

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

std::vector<size_t> set_union_of(const std::vector<size_t>& a, const std::vector<size_t>& b) {
  std::vector<size_t> all;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(all));
  return all;
}

}  // namespace

Capture::Capture(const Ref<Stream>& origin, CUstreamCaptureMode mode)
    : id_(++last_id), mode_(mode) {
  open_captures().push_back(this);
  open_count.store(open_captures().size());
  streams_.push_back(origin);
}

CapturePosition& Capture::position_of(const Ref<Stream>& stream) {
  return stream->capture_position_;
}

void Capture::add_stream(const Ref<Stream>& stream, std::vector<size_t> dependencies) {
  const auto branch = std::find(streams_.begin(), streams_.end(), stream) - streams_.begin();
  if (static_cast<size_t>(branch) == streams_.size()) streams_.push_back(stream);
  position_of(stream).dependencies = std::move(dependencies);
  position_of(stream).branch = static_cast<size_t>(branch);
  stream->capturing_.store(true, std::memory_order_release);
}

void Capture::check_valid() const { require(valid_, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED); }

// Ends the capture on its streams. Events recorded in the capture still refer to it and see that it
// has ended.
void Capture::detach_streams() {
  ended_ = true;
  std::erase(open_captures(), this);
  open_count.store(open_captures().size());
  for (const Ref<Stream>& stream : std::exchange(streams_, {})) {
    if (!stream->capturing() || position_of(stream).capture.get() != this) continue;
    stream->capturing_.store(false, std::memory_order_release);
    std::exchange(position_of(stream), {});
  }
}

void Capture::begin(const Ref<Stream>& origin, CUstreamCaptureMode mode) {
  const std::lock_guard lock(captures_mutex);
  require(origin && !origin->capturing(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  const auto capture = std::make_shared<Capture>(origin, mode);
  position_of(origin).capture = capture;
  capture->add_stream(origin, {});
}

std::unique_ptr<Graph> Capture::end(const Ref<Stream>& origin) {
  const std::lock_guard lock(captures_mutex);
  require(origin && origin->capturing(), CUDA_ERROR_INVALID_VALUE);
  const CapturePosition position = position_of(origin);
  Capture& capture = *position.capture;
  if (!(capture.streams_.front() == origin)) {
    capture.invalidate();
    throw DeviceError(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  }
  require(capture.mode_ == CU_STREAM_CAPTURE_MODE_RELAXED ||
              capture.thread_ == std::this_thread::get_id(),
          CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  capture.detach_streams();
  capture.check_valid();
  require(capture.graph_->finish(position.dependencies), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  return std::move(capture.graph_);
}

Capture::Info Capture::info(const Ref<Stream>& stream) {
  if (!stream || !stream->capturing()) return {};
  const std::lock_guard lock(captures_mutex);
  if (!stream->capturing()) return {};
  const Capture& capture = *position_of(stream).capture;
  return {capture.valid_ ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_INVALIDATED,
          capture.id_};
}

void Capture::add_node(const Streams& streams, Graph::Payload payload) {
  const std::lock_guard lock(captures_mutex);
  std::shared_ptr<Capture> capture;
  std::vector<size_t> dependencies;
  for (const Ref<Stream>& stream : streams) {
    require(stream->capturing(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    const CapturePosition& position = position_of(stream);
    if (capture != nullptr && capture != position.capture) {
      capture->invalidate();
      position.capture->invalidate();
      throw DeviceError(CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    capture = position.capture;
    dependencies = set_union_of(dependencies, position.dependencies);
  }
  capture->check_valid();
  const size_t branch = position_of(streams.front()).branch;
  const size_t node = capture->graph_->add({std::move(dependencies), branch, std::move(payload)});
  for (const Ref<Stream>& stream : streams) position_of(stream).dependencies = {node};
}

std::shared_ptr<EventRecord> Capture::record_event(const Ref<Stream>& stream) {
  const std::lock_guard lock(captures_mutex);
  require(stream->capturing(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  position_of(stream).capture->check_valid();
  return std::make_shared<EventRecord>(position_of(stream));
}

void Capture::wait_for_position(const Ref<Stream>& stream, const CapturePosition& position) {
  const std::lock_guard lock(captures_mutex);
  Capture& capture = *position.capture;
  if (stream && stream->capturing()) {
    CapturePosition& own = position_of(stream);
    own.capture->check_valid();
    if (own.capture != position.capture) {  // the latter may have ended
      own.capture->invalidate();
      capture.invalidate();
      throw DeviceError(CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    own.dependencies = set_union_of(own.dependencies, position.dependencies);
    return;
  }
  require(!capture.ended_, CUDA_ERROR_CAPTURED_EVENT);
  capture.check_valid();
  if (!stream) {
    capture.invalidate();
    throw DeviceError(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  position_of(stream).capture = position.capture;
  capture.add_stream(stream, position.dependencies);
}

void Capture::check_not_capturing(const Ref<Stream>& stream, CUresult error) {
  if (!stream || !stream->capturing()) return;
  const std::lock_guard lock(captures_mutex);
  if (!stream->capturing()) return;
  Capture& capture = *position_of(stream).capture;
  capture.check_valid();
  capture.invalidate();
  throw DeviceError(error);
}

void Capture::check_not_captured(const EventRecord* record) {
  if (record == nullptr || !record->capture_position()) return;
  const std::lock_guard lock(captures_mutex);
  record->capture_position()->capture->invalidate();
  throw DeviceError(CUDA_ERROR_CAPTURED_EVENT);
}

void Capture::check_nothing_captured() {
  if (open_count.load(std::memory_order_acquire) == 0) return;
  const std::lock_guard lock(captures_mutex);
  for (Capture* capture : open_captures()) capture->invalidate();
  require(open_captures().empty(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

void Capture::check_unsafe_call() {
  if (open_count.load(std::memory_order_acquire) == 0) return;
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return;
  const std::lock_guard lock(captures_mutex);
  bool forbidden = false;
  for (Capture* capture : open_captures()) {
    const bool by_this_thread = capture->thread_ == std::this_thread::get_id();
    if (by_this_thread ? capture->mode_ == CU_STREAM_CAPTURE_MODE_RELAXED
                       : capture->mode_ != CU_STREAM_CAPTURE_MODE_GLOBAL ||
                             thread_mode != CU_STREAM_CAPTURE_MODE_GLOBAL) {
      continue;
    }
    capture->invalidate();
    forbidden = true;
  }
  require(!forbidden, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

void Capture::on_stream_destroyed(const Ref<Stream>& stream) {
  if (!stream->capturing()) return;
  const std::lock_guard lock(captures_mutex);
  if (!stream->capturing()) return;
  const std::shared_ptr<Capture> capture = position_of(stream).capture;
  if (capture->streams_.front() == stream) capture->detach_streams();
}

CUstreamCaptureMode Capture::exchange_thread_mode(CUstreamCaptureMode mode) {
  return std::exchange(thread_mode, mode);
}

}  // namespace hostnccl

#include "hostnccl/streams/capture.h"

#include <algorithm>
#include <iterator>
#include <mutex>
#include <utility>

#include "hostnccl/streams/device_error.h"

namespace hostnccl {
namespace {

using namespace abi;

std::mutex mutex;
uint64_t ids = 0;

std::vector<Capture*>& open_captures() {
  static std::vector<Capture*>& captures = *new std::vector<Capture*>;
  return captures;
}

std::atomic<size_t> open_count{0};

thread_local CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

std::vector<size_t> together(const std::vector<size_t>& a, const std::vector<size_t>& b) {
  std::vector<size_t> all;
  std::set_union(a.begin(), a.end(), b.begin(), b.end(), std::back_inserter(all));
  return all;
}

}  // namespace

Capture::Capture(const Ref<Stream>& origin, CUstreamCaptureMode mode) : id_(++ids), mode_(mode) {
  open_captures().push_back(this);
  open_count.store(open_captures().size());
  streams_.push_back(origin);
}

Place& Capture::place_of(const Ref<Stream>& stream) { return stream->place_; }

void Capture::add(const Ref<Stream>& stream, std::vector<size_t> after) {
  const auto branch = std::find(streams_.begin(), streams_.end(), stream) - streams_.begin();
  if (static_cast<size_t>(branch) == streams_.size()) streams_.push_back(stream);
  place_of(stream).after = std::move(after);
  place_of(stream).branch = static_cast<size_t>(branch);
  stream->capturing_.store(true, std::memory_order_release);
}

void Capture::check_valid() const { require(valid_, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED); }

// What its streams have recorded is over; an event that was recorded in it still knows so.
void Capture::detach_all() {
  ended_ = true;
  std::erase(open_captures(), this);
  open_count.store(open_captures().size());
  for (const Ref<Stream>& stream : std::exchange(streams_, {})) {
    if (!stream->capturing() || place_of(stream).capture.get() != this) continue;
    stream->capturing_.store(false, std::memory_order_release);
    std::exchange(place_of(stream), {});
  }
}

void Capture::begin(const Ref<Stream>& stream, CUstreamCaptureMode mode) {
  const std::lock_guard lock(mutex);
  require(stream && !stream->capturing(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  const auto capture = std::make_shared<Capture>(stream, mode);
  place_of(stream).capture = capture;
  capture->add(stream, {});
}

std::unique_ptr<Graph> Capture::end(const Ref<Stream>& stream) {
  const std::lock_guard lock(mutex);
  require(stream && stream->capturing(), CUDA_ERROR_INVALID_VALUE);
  const Place place = place_of(stream);
  Capture& capture = *place.capture;
  if (!(capture.streams_.front() == stream)) {
    capture.invalidate();
    throw DeviceError(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  }
  require(capture.mode_ == CU_STREAM_CAPTURE_MODE_RELAXED ||
              capture.thread_ == std::this_thread::get_id(),
          CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
  capture.detach_all();
  capture.check_valid();
  require(capture.graph_->end_with(place.after), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  return std::move(capture.graph_);
}

Capture::Info Capture::info(const Ref<Stream>& stream) {
  if (!stream || !stream->capturing()) return {};
  const std::lock_guard lock(mutex);
  if (!stream->capturing()) return {};
  const Capture& capture = *place_of(stream).capture;
  return {capture.valid_ ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_INVALIDATED,
          capture.id_};
}

void Capture::record(const Streams& streams, Graph::Work work) {
  const std::lock_guard lock(mutex);
  std::shared_ptr<Capture> capture;
  std::vector<size_t> after;
  for (const Ref<Stream>& stream : streams) {
    require(stream->capturing(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    const Place& place = place_of(stream);
    if (capture != nullptr && capture != place.capture) {
      capture->invalidate();
      place.capture->invalidate();
      throw DeviceError(CUDA_ERROR_STREAM_CAPTURE_MERGE);
    }
    capture = place.capture;
    after = together(after, place.after);
  }
  capture->check_valid();
  const size_t branch = place_of(streams.front()).branch;
  const size_t node = capture->graph_->add({std::move(after), branch, std::move(work)});
  for (const Ref<Stream>& stream : streams) place_of(stream).after = {node};
}

std::shared_ptr<Event::Record> Capture::mark(const Ref<Stream>& stream) {
  const std::lock_guard lock(mutex);
  require(stream->capturing(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
  place_of(stream).capture->check_valid();
  return std::make_shared<Event::Record>(place_of(stream));
}

void Capture::join(const Ref<Stream>& stream, const Place& place) {
  const std::lock_guard lock(mutex);
  Capture& capture = *place.capture;
  require(!capture.ended_, CUDA_ERROR_CAPTURED_EVENT);
  capture.check_valid();
  if (!stream) {
    capture.invalidate();
    throw DeviceError(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  }
  Place& own = place_of(stream);
  if (!stream->capturing()) {
    own.capture = place.capture;
    return capture.add(stream, place.after);
  }
  if (own.capture != place.capture) {
    own.capture->invalidate();
    capture.invalidate();
    throw DeviceError(CUDA_ERROR_STREAM_CAPTURE_MERGE);
  }
  own.after = together(own.after, place.after);
}

void Capture::refuse(const Ref<Stream>& stream, CUresult error) {
  if (!stream || !stream->capturing()) return;
  const std::lock_guard lock(mutex);
  if (!stream->capturing()) return;
  Capture& capture = *place_of(stream).capture;
  capture.check_valid();
  capture.invalidate();
  throw DeviceError(error);
}

void Capture::refuse(const Event::Record* record) {
  if (record == nullptr || !record->place()) return;
  const std::lock_guard lock(mutex);
  record->place()->capture->invalidate();
  throw DeviceError(CUDA_ERROR_CAPTURED_EVENT);
}

void Capture::refuse_in_other_captures() {
  if (open_count.load(std::memory_order_acquire) == 0) return;
  if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return;
  const std::lock_guard lock(mutex);
  bool forbidden = false;
  for (Capture* capture : open_captures()) {
    const bool own = capture->thread_ == std::this_thread::get_id();
    if (own ? capture->mode_ == CU_STREAM_CAPTURE_MODE_RELAXED
            : capture->mode_ != CU_STREAM_CAPTURE_MODE_GLOBAL ||
                  thread_mode != CU_STREAM_CAPTURE_MODE_GLOBAL) {
      continue;
    }
    capture->invalidate();
    forbidden = true;
  }
  require(!forbidden, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
}

void Capture::leave(const Ref<Stream>& stream) {
  if (!stream->capturing()) return;
  const std::lock_guard lock(mutex);
  if (!stream->capturing()) return;
  const std::shared_ptr<Capture> capture = place_of(stream).capture;
  if (capture->streams_.front() == stream) capture->detach_all();
}

CUstreamCaptureMode Capture::exchange_mode(CUstreamCaptureMode mode) {
  return std::exchange(thread_mode, mode);
}

}  // namespace hostnccl

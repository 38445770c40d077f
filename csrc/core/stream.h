// A stream of our own and the events between streams, on either provider. Handles that came from
// elsewhere (torch, CuPy) are plain cudaStream_t and never pass through here.
#pragma once

#include <memory>

#include "core/library.h"

namespace pynccl {

class Event;

class Stream {
 public:
  // priority: as CUDA counts it, lower numbers first; 0 is the default. What the device does not
  // have becomes the nearest that it has. device below 0: the current one.
  Stream(std::shared_ptr<Library> library, int device, int priority);
  ~Stream();
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  const Library& library() const { return *library_; }
  const std::shared_ptr<Library>& shared_library() const { return library_; }
  int device() const { return device_; }
  CUstream handle() const;  // throws std::invalid_argument when closed

  int priority() const;
  CUstreamCaptureStatus capture_status() const;

  void synchronize() const;
  bool query() const;  // whether all that was enqueued is done
  void wait(const Event& event) const;
  void launch_host_function(CUhostFn function, void* data) const;
  void close();  // what is enqueued still runs

 private:
  std::shared_ptr<Library> library_;
  CUstream stream_ = nullptr;
  int device_ = 0;
};

class Event {
 public:
  Event(std::shared_ptr<Library> library, int device, bool timing);
  ~Event();
  Event(const Event&) = delete;
  Event& operator=(const Event&) = delete;

  const Library& library() const { return *library_; }
  CUevent handle() const;  // throws std::invalid_argument when closed

  void record(CUstream stream) const;
  void synchronize() const;
  bool query() const;                              // whether the recorded work is done
  double elapsed_seconds(const Event& end) const;  // both made with timing, both recorded
  void close();

 private:
  std::shared_ptr<Library> library_;
  CUevent event_ = nullptr;
};

}  // namespace pynccl

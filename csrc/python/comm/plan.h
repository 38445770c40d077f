// Plan: a fixed sequence of operations, recorded and checked once in a with block and then issued
// any number of times with one call.
#pragma once

#include <memory>

#include "python/comm/group.h"

namespace pynccl::python {

class Plan : Group::Recorder {
 public:
  Plan() : Recorder{"plan"} {}
  void enter();
  void exit(bool failed);
  void close();  // releases the buffers; closing twice is allowed

  // Issues the operations on stream or, if it is nullptr, on the recorded streams. Inside a group
  // it adds them to the group. Throws std::invalid_argument if nothing was recorded.
  void replay(PyObject* stream) const;

  std::size_t size() const { return batch_ ? batch_->size() : 0; }
  std::string text() const;

 private:
  enum class State { kNew, kRecording, kReady, kFailed, kClosed };

  const char* why_not_ready() const;

  State state_ = State::kNew;
  // Shared with calls in progress, so that close() on another thread does not destroy it.
  std::shared_ptr<const Batch> batch_;
};

}  // namespace pynccl::python

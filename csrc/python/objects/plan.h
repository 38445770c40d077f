// A fixed sequence of operations: recorded once in a with block, checked while it is recorded, and
// issued again as one call.
#pragma once

#include <memory>

#include "python/objects/group.h"

namespace pynccl::python {

class Plan : Group::Recorder {
 public:
  Plan() : Recorder{"plan"} {}
  void enter();
  void exit(bool failed);
  void close();  // lets go of the buffers; closing twice is no error

  // Issues the operations, on stream instead of the recorded ones unless that is nullptr; inside a
  // group, adds them to it. Throws std::invalid_argument where there is no recording to issue.
  void replay(PyObject* stream) const;

  std::size_t size() const { return batch_ ? batch_->size() : 0; }
  std::string text() const;

 private:
  enum class State { kNew, kRecording, kReady, kFailed, kClosed };

  const char* why_not() const;

  State state_ = State::kNew;
  // Shared with the calls in progress, which another thread's close() must not disturb.
  std::shared_ptr<const Batch> batch_;
};

}  // namespace pynccl::python

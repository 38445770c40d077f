// What graphs hold: NCCL keeps a communicator while a graph, an executable of it, or a launch in
// flight has its operations.
#pragma once

#include "driver/stream.h"

namespace cuda_double {

class Held {
 public:
  virtual ~Held() = default;
  virtual void before_launch() = 0;
  virtual void after_launch() = 0;  // on the stream of the launch, or where that has failed
};

using Hold = std::shared_ptr<Held>;

// Hold is kept by the graph that the stream is being captured into; false: it is not captured.
bool hold_in_capture(const Stream& stream, Hold hold);

}  // namespace cuda_double

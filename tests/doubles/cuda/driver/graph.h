// Objects held by graphs: NCCL keeps a communicator while a graph, its executable, or a launch in
// flight contains its operations.
#pragma once

#include "driver/stream.h"

namespace cuda_double {

class Held {
 public:
  virtual ~Held() = default;
  virtual void before_launch() = 0;
  virtual void after_launch() = 0;  // on the stream of the launch, or after the launch has failed
};

using Hold = std::shared_ptr<Held>;

// Adds hold to the graph into which the stream is being captured. False if it is not capturing.
bool hold_in_capture(const Stream& stream, Hold hold);

// The work captured on the stream so far needs no join at the end of the capture. Does nothing if
// the stream is not capturing.
void need_no_join(const Stream& stream);

}  // namespace cuda_double

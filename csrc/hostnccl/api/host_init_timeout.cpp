// hostSetInitTimeout(): the time limit of the communicators that a thread creates. In NCCL such a
// call waits without limit, and only that of a non-blocking communicator can be ended, by
// ncclCommAbort.
#include <algorithm>

#include "hostnccl/rendezvous/creation.h"

// In seconds, for the calling thread, from now on; negative selects HOSTNCCL_INIT_TIMEOUT.
extern "C" [[gnu::visibility("default")]] void hostSetInitTimeout(double seconds) {
  using hostnccl::Creation;
  constexpr double kLongest = 1e8;
  Creation::set_limit(seconds < 0 ? std::nullopt
                                  : std::optional(Creation::Seconds(std::min(seconds, kLongest))));
}

// hostSetStrictCalls(): the test double of NCCL has the rules of non-blocking calls itself, by
// release.
#include "hostnccl/segment/comm_settings.h"

extern "C" [[gnu::visibility("default")]] void hostSetStrictCalls(int on) {
  hostnccl::set_strict_calls(on != 0);
}

// hostSetStrictCalls(): NCCL's test double implements the rules of non-blocking calls itself,
// depending on the release.
#include "hostnccl/segment/comm_settings.h"

extern "C" [[gnu::visibility("default")]] void hostSetStrictCalls(int on) {
  hostnccl::set_strict_calls(on != 0);
}

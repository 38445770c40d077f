// hostSetInterruptCheck(): for bindings of languages whose signal handlers run between two
// instructions, as in Python.
#include "hostnccl/base/interrupt.h"

extern "C" [[gnu::visibility("default")]] void hostSetInterruptCheck(int (*check)()) {
  hostnccl::set_interrupt_check(check);
}

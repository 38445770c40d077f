#include "python/call/gil.h"

#include <unistd.h>

namespace pynccl::python::gil {

void sleep_until_exit() {
  for (;;) pause();
}

PyGILState_STATE ensure() {
  // A thread without a state of Python cannot get one any more.
  if (!Py_IsInitialized() && !PyGILState_GetThisThreadState()) sleep_until_exit();
  return or_sleep([] { return PyGILState_Ensure(); });
}

}  // namespace pynccl::python::gil

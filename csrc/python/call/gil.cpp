#include "python/call/gil.h"

#include <cxxabi.h>
#include <unistd.h>

namespace pynccl::python::gil {
namespace {

[[noreturn, gnu::cold]] void sleep_until_exit() {
  for (;;) pause();
}

}  // namespace

void restore(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (const abi::__forced_unwind&) {  // pthread_exit
    sleep_until_exit();
  }
}

PyGILState_STATE ensure() {
  // A thread without a state of Python cannot get one any more.
  if (!Py_IsInitialized() && !PyGILState_GetThisThreadState()) sleep_until_exit();
  try {
    return PyGILState_Ensure();
  } catch (const abi::__forced_unwind&) {
    sleep_until_exit();
  }
}

}  // namespace pynccl::python::gil

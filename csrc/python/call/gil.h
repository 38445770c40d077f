// Lets other Python threads run while this one is in a call that can block. pybind11's
// gil_scoped_release does the same after a look at its own thread states, which costs as much as
// all that a call checks.
#pragma once

#include <pybind11/pybind11.h>

namespace pynccl::python {

class GilReleased {
 public:
  GilReleased() : state_(PyEval_SaveThread()) {}
  ~GilReleased() { PyEval_RestoreThread(state_); }
  GilReleased(const GilReleased&) = delete;
  GilReleased& operator=(const GilReleased&) = delete;

 private:
  PyThreadState* state_;
};

}  // namespace pynccl::python

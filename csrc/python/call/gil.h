// GilReleased: releases the GIL for the length of a scope, around a call that can block.
// pybind11::gil_scoped_release does the same and costs as much as all checks of a call, since it
// also looks up pybind11's thread state.
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

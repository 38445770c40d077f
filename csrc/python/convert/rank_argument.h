// Converts a rank argument: a root or a peer.
#pragma once

#include <string>

#include "python/convert/integer.h"

namespace pynccl::python {

[[noreturn, gnu::cold, gnu::noinline]] inline void throw_rank(const char* name, int rank,
                                                              int nranks) {
  throw py::value_error(std::string(name) + ": rank " + std::to_string(rank) +
                        " is out of range for a communicator of size " + std::to_string(nranks));
}

inline int rank_from_python(const char* name, PyObject* value, int nranks) {
  const int rank = integer_from_python<int>(name, value);
  if (rank < 0 || rank >= nranks) [[unlikely]]
    throw_rank(name, rank, nranks);
  return rank;
}

}  // namespace pynccl::python

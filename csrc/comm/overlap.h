// Checks that the buffers of an operation, or of the operations of a group, do not overlap in a way
// that NCCL leaves undefined.
#pragma once

#include <stdexcept>
#include <vector>

#include "comm/communicator.h"
#include "extension/overlap.h"

namespace pynccl {

// The exception of an overlap, a ValueError in Python.
class OverlapError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

class OverlapCheck {
 public:
  explicit OverlapCheck(std::size_t operations);

  void add(Communicator& communicator, const Operation& operation);
  // Throws OverlapError, which names the operations.
  void run();

 private:
  OverlapSearch search_;
  std::vector<OperationKind> kinds_;
};

// Checks a single operation.
void check_overlap(Communicator& communicator, const Operation& operation);

}  // namespace pynccl

// The check that outputs overlap nothing that NCCL leaves undefined: of an operation, and of the
// operations of a group.
#pragma once

#include <stdexcept>
#include <vector>

#include "comm/communicator.h"
#include "extension/overlap.h"

namespace pynccl {

// Memory of a group overlaps; a ValueError in Python.
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

// The same for one operation.
void check_overlap(Communicator& communicator, const Operation& operation);

}  // namespace pynccl

// Operation: one call of the backend, checked and ready to be issued on a lane.
#pragma once

#include <c10/util/SmallVector.h>
#include <pynccl/pynccl.h>

#include <chrono>
#include <memory>
#include <vector>

#include "compat.h"

namespace pynccl::dist {

// The factor of PREMUL_SUM, for which an operator is made when the operation is issued.
struct Factor {
  at::Tensor tensor;               // of one element, of the dtype of the operation
  int dtype;                       // an ncclDataType_t
  std::size_t first = 0, end = 0;  // the calls that use it
};

struct Operation {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = "";                      // for the profiler: "pynccl:all_reduce"
  c10::SmallVector<PyncclOperation, 1> calls;  // more than one are a group of NCCL
  std::vector<at::Tensor> tensors;  // what is read and not written; held until it is done
  std::vector<at::Tensor> outputs;  // what is written: the result
  std::vector<Factor> factors;
  std::shared_ptr<void> held;  // what the calls point to, besides tensors
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;  // its own
  bool async = true;
  bool blocks = false;    // wait() returns when the operation is done, on GPUs too
  bool timed = false;     // whether its duration is taken
  bool messages = false;  // no operation of all ranks, whatever its type
  int peer = -1;          // of a message
  std::uint64_t number = 0;
};

// The name without the prefix of the title.
inline const char* name_of(const Operation& operation) { return operation.title + 7; }

}  // namespace pynccl::dist

// Operation: one backend call, validated and ready to be issued on a lane.
#pragma once

#include <c10/util/SmallVector.h>
#include <pynccl/pynccl.h>

#include <chrono>
#include <memory>
#include <vector>

#include "compat.h"

namespace pynccl::dist {

// The factor of PREMUL_SUM, for which an operator is created when the operation is issued.
struct Factor {
  at::Tensor tensor;               // one element, of the operation's dtype
  int dtype;                       // an ncclDataType_t
  std::size_t first = 0, end = 0;  // the calls that use it
};

// Which list of tensors has equal sizes, in an operation with one call per rank. Accelerators issue
// one collective over a flat buffer instead.
enum class EqualParts { kNone, kOutputs, kInputs };

struct Operation {
  c10d::OpType type = c10d::OpType::UNKNOWN;
  const char* title = "";                      // for the profiler: "pynccl:all_reduce"
  c10::SmallVector<PyncclOperation, 1> calls;  // several are issued as an NCCL group
  std::vector<at::Tensor> tensors;             // read-only inputs, kept alive until it is done
  std::vector<at::Tensor> outputs;             // written: the result
  std::vector<Factor> factors;
  EqualParts equal_parts = EqualParts::kNone;
  std::shared_ptr<void> held;                               // other objects that the calls point to
  std::chrono::milliseconds timeout = c10d::kUnsetTimeout;  // of this operation
  bool async = true;
  bool blocks = false;    // wait() blocks until it is complete, even on GPUs
  bool timed = false;     // whether to measure its duration
  bool messages = false;  // whether it is point-to-point, whatever its type
  int peer = -1;          // of a message
  std::uint64_t number = 0;
};

// The name without the prefix of the title.
inline const char* name_of(const Operation& operation) { return operation.title + 7; }

}  // namespace pynccl::dist

// The custom reduction operators (PreMulSum) of a communicator. A handle is never reused, so a
// destroyed operator and one of another communicator are detected. In strict mode it is reused, as
// in NCCL.
#pragma once

#include <mutex>
#include <unordered_map>
#include <vector>

#include "hostnccl/communicator/operation.h"

namespace hostnccl {

class RedOps {
 public:
  explicit RedOps(bool uses_again) : uses_again_(uses_again) {}

  abi::ncclRedOp_t add(const Multiplier& multiplier, abi::ncclDataType_t dtype);
  void remove(abi::ncclRedOp_t op);
  // Throws if op is not an operator of this communicator, or was created for another datatype.
  Multiplier find(abi::ncclRedOp_t op, abi::ncclDataType_t dtype) const;

 private:
  struct RedOp {
    Multiplier multiplier;
    abi::ncclDataType_t dtype;
  };
  const bool uses_again_;
  mutable std::mutex mutex_;
  std::unordered_map<unsigned, RedOp> ops_;
  std::vector<unsigned> destroyed_;  // handles to be used again
};

}  // namespace hostnccl

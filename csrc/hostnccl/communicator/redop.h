// The custom reduction operators (PreMulSum) of a communicator. A handle is never used twice, so a
// destroyed operator and one of another communicator are detected.
#pragma once

#include <mutex>
#include <unordered_map>

#include "hostnccl/communicator/operation.h"

namespace hostnccl {

class RedOps {
 public:
  abi::ncclRedOp_t add(const Multiplier& multiplier, abi::ncclDataType_t dtype);
  void remove(abi::ncclRedOp_t op);
  // Throws if op is not an operator of this communicator, or was made for another datatype.
  Multiplier find(abi::ncclRedOp_t op, abi::ncclDataType_t dtype) const;

 private:
  struct RedOp {
    Multiplier multiplier;
    abi::ncclDataType_t dtype;
  };
  mutable std::mutex mutex_;
  std::unordered_map<unsigned, RedOp> ops_;
};

}  // namespace hostnccl

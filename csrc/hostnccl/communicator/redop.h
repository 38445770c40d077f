// The reduction operators that a communicator's user has made (PreMulSum). Their handles are never
// given out twice, so a destroyed or foreign one is found out.
#pragma once

#include <mutex>
#include <unordered_map>

#include "hostnccl/communicator/operation.h"

namespace hostnccl {

class RedOps {
 public:
  abi::ncclRedOp_t add(const Multiplier& multiplier, abi::ncclDataType_t dtype);
  void remove(abi::ncclRedOp_t op);
  // Throws if op is not one of these, or is for another datatype.
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

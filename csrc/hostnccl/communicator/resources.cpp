#include "hostnccl/communicator/resources.h"

#include <atomic>

namespace hostnccl {
namespace {

std::atomic<uint64_t> next_handle{abi::ncclNumOps};

}  // namespace

abi::ncclRedOp_t RedOps::add(const Multiplier& multiplier, abi::ncclDataType_t dtype) {
  const std::lock_guard lock(mutex_);
  unsigned handle;
  if (destroyed_.empty()) {
    const uint64_t next = next_handle.fetch_add(1, std::memory_order_relaxed);
    if (next >= abi::ncclMaxRedOp) {
      fail(abi::ncclSystemError, "all handles for reduction operators have been used");
    }
    handle = static_cast<unsigned>(next);
  } else {
    handle = destroyed_.back();
    destroyed_.pop_back();
  }
  ops_.emplace(handle, RedOp{multiplier, dtype});
  return static_cast<abi::ncclRedOp_t>(handle);
}

void RedOps::remove(abi::ncclRedOp_t op) {
  const std::lock_guard lock(mutex_);
  if (ops_.erase(op) == 0) {
    fail(abi::ncclInvalidArgument,
         "op=%u is not an operator created by ncclRedOpCreatePreMulSum for this communicator",
         static_cast<unsigned>(op));
  }
  if (reuses_handles_) destroyed_.push_back(op);
}

Multiplier RedOps::find(abi::ncclRedOp_t op, abi::ncclDataType_t dtype) const {
  const std::lock_guard lock(mutex_);
  const auto found = ops_.find(op);
  if (found == ops_.end()) {
    fail(abi::ncclInvalidArgument,
         "op=%u is neither a built-in operator nor one of this communicator",
         static_cast<unsigned>(op));
  }
  if (found->second.dtype != dtype) {
    fail(abi::ncclInvalidArgument, "op=%u was created for %s, but the datatype of the call is %s",
         static_cast<unsigned>(op), dtype_name(found->second.dtype), dtype_name(dtype));
  }
  return found->second.multiplier;
}

}  // namespace hostnccl

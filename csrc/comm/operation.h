// Operation: one collective, message or one-sided operation with checked arguments, ready to be
// issued. Direct calls, groups and plans use it.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nccl/table.h"

namespace pynccl {

enum class OperationKind : unsigned char {
#define OPERATION(name, ...) k##name,
#define ONE_SIDED(name, method) k##name,
#include "comm/operations.inc"
  kConfigured = 0x80,  // flag: the collective has an ncclCollConfig_t
};

constexpr OperationKind configured(OperationKind kind) {
  return static_cast<OperationKind>(static_cast<unsigned char>(kind) |
                                    static_cast<unsigned char>(OperationKind::kConfigured));
}

// The kind without the kConfigured flag.
constexpr OperationKind plain(OperationKind kind) {
  return static_cast<OperationKind>(static_cast<unsigned char>(kind) &
                                    ~static_cast<unsigned char>(OperationKind::kConfigured));
}

class Window;

constexpr int kOneSidedDriver = 12050;  // the first CUDA driver that supports one-sided operations

struct Operation {
  OperationKind kind;
  ncclDataType_t dtype;
  ncclRedOp_t op;        // reductions only
  int root_or_peer;      // the root of a rooted collective, the peer of a message or signal
  const void* sendbuff;  // kWaitSignal: an array of ncclWaitSignalDesc_t
  void* recvbuff;
  std::size_t count;  // in elements of dtype, as the nccl.h function of this kind counts
  cudaStream_t stream;
  const ncclCollConfig_t* config = nullptr;  // kConfigured only; owned by the CollConfig
  // One-sided operations only:
  const Window* window = nullptr;  // the destination of a put
  std::size_t offset = 0;          // bytes
  int signal = 0;
  int context = 0;
};

}  // namespace pynccl

// MethodTraits: the parameter names and buffer blocks of each method of Communicator that takes a
// tensor. Shared by the methods, the factory and the docstrings.
#pragma once

#include "comm/operation.h"

namespace pynccl::python {

// A buffer holds one block, or one block per rank.
struct MethodTraits {
  const char* name;
  const char* root_or_peer;  // the name of the rank parameter, nullptr if there is none
  bool reduces;
  bool takes_out;
  int send_blocks;  // 1, or 0 for one per rank
  int recv_blocks;

  constexpr bool takes_rank() const { return root_or_peer != nullptr; }
  // Whether both buffers hold one block, so that the operation can run in place on one buffer.
  constexpr bool one_block() const { return send_blocks == 1 && recv_blocks == 1; }
};

template <OperationKind K>
constexpr MethodTraits method_traits() {
  switch (K) {
#define OPERATION(name, method, ...) \
  case OperationKind::k##name:       \
    return {#method, __VA_ARGS__};
#define ONE_SIDED(name, method)
#include "comm/operations.inc"
  }
}

}  // namespace pynccl::python

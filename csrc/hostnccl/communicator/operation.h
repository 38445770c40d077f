// Operation: a call of a collective, a message or a one-sided function, with checked arguments.
// Also the table of collective traits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

#include "hostnccl/base/error.h"
#include "hostnccl/kernels/reduce.h"
#include "hostnccl/segment/rank_state.h"

namespace hostnccl {

enum class Kind : uint8_t {
  AllReduce,
  Broadcast,
  Reduce,
  AllGather,
  ReduceScatter,
  AlltoAll,
  Gather,
  Scatter,
  Split,  // from here to Resume: internal all-gathers of bytes
  WindowRegister,
  Grow,
  Suspend,
  Resume,
  Send,  // from here: not collective
  Recv,
  PutSignal,
  Signal,
  WaitSignal,
};

// How a collective moves data. Each source contributes one block, or one block per destination.
// Each receiver copies its blocks or reduces them into one.
struct CollectiveTraits {
  const char* name;
  bool block_per_destination;
  bool reduces;
  bool only_root_sends;
  bool only_root_receives;
  bool has_root() const { return only_root_sends || only_root_receives; }
};

inline constexpr CollectiveTraits kCollectiveTraits[] = {
    {"ncclAllReduce", false, true, false, false},
    {"ncclBroadcast", false, false, true, false},
    {"ncclReduce", false, true, false, true},
    {"ncclAllGather", false, false, false, false},
    {"ncclReduceScatter", true, true, false, false},
    {"ncclAlltoAll", true, false, false, false},
    {"ncclGather", false, false, false, true},
    {"ncclScatter", true, false, true, false},
    {"ncclCommSplit", false, false, false, false},
    {"ncclCommWindowRegister", false, false, false, false},
    {"ncclCommGrow", false, false, false, false},
    {"ncclCommSuspend", false, false, false, false},
    {"ncclCommResume", false, false, false, false},
    {"ncclSend", false, false, false, false},
    {"ncclRecv", false, false, false, false},
    {"ncclPutSignal", false, false, false, false},
    {"ncclSignal", false, false, false, false},
    {"ncclWaitSignal", false, false, false, false},
};
static_assert(std::size(kCollectiveTraits) == size_t(Kind::WaitSignal) + 1);

inline const CollectiveTraits& traits_of(Kind kind) {
  return kCollectiveTraits[static_cast<size_t>(kind)];
}
inline bool is_collective(Kind kind) { return kind <= Kind::Resume; }
inline bool is_one_sided(Kind kind) { return kind >= Kind::PutSignal; }
inline bool is_message(Kind kind) { return kind == Kind::Send || kind == Kind::Recv; }

// The path of a collective's data: see operations/collective.h.
enum class Path : uint8_t { Any, Staged, Direct };

// The scalar of PreMulSum: a value, or an address that is read when the operation runs.
struct Multiplier {
  enum class From : uint8_t { None, Value, Address } from = From::None;
  Scalar value{};
  const void* address = nullptr;
};

struct Operation {
  Kind kind;
  abi::ncclDataType_t dtype;
  ReduceKind reduce = ReduceKind::Sum;
  Path path = Path::Any;  // of a collective. Any: depends on the size
  int root_or_peer = 0;   // the root of a collective, else the peer
  uint32_t signal = 0;    // one-sided operations: index in SignalRange
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;       // elements of one block. WaitSignal: number of signals
  bool captured = false;  // part of a graph
  uint64_t tag = 0;       // userProfilerTag of the caller, shown in error texts
  Multiplier multiplier = {};

  size_t block_bytes() const { return count * element_size(dtype); }
};

// An internal all-gather of one value per rank.
template <typename T>
Operation all_gather(Kind kind, const T& own, std::vector<T>& all) {
  Operation operation{kind, abi::ncclUint8};
  operation.send = &own;
  operation.recv = all.data();
  operation.count = sizeof own;
  return operation;
}

Descriptor describe(const Operation& operation);  // reads a multiplier at an address
bool same_call(const Descriptor& a, const Descriptor& b);
std::string to_text(const Descriptor& call);      // "ncclAllReduce(count=4, float32, sum)"
std::string to_text(const Operation& operation);  // the same, and "ncclSend(count=4, float32)"
std::string ranks_text(const std::vector<int>& ranks);  // "rank 1", "ranks 0, 1 and 3"

const char* dtype_name(unsigned dtype);

}  // namespace hostnccl

// One call of a collective, a send or a receive, with its arguments checked, and the table of what
// the collectives have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>

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
  Split,  // from here on the engine's own AllGathers of bytes
  WindowRegister,
  Grow,
  Suspend,
  Resume,
  Send,  // no collectives any more
  Recv,
  PutSignal,
  Signal,
  WaitSignal,
};

// Every collective: each source contributes one block, or one for each destination; each receiver
// copies the blocks that are for it, or reduces them into one.
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
inline bool is_message(Kind kind) { return kind == Kind::Send || kind == Kind::Recv; }

// The two ways in which a collective's data travels: see collective_paths.h.
enum class Path : uint8_t { Any, Staged, Direct };

const char* name_of(Path path);

// PreMulSum's scalar: a value, or an address that is read when the operation runs.
struct Multiplier {
  enum class From : uint8_t { None, Value, Address } from = From::None;
  Scalar value{};
  const void* address = nullptr;
};

struct Operation {
  Kind kind;
  abi::ncclDataType_t dtype;
  ReduceKind reduce = ReduceKind::Sum;
  Path path = Path::Any;  // of a collective; any: by its size
  int root = 0;           // or the peer
  uint32_t signal = 0;    // of the one-sided ones: see SignalRange
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;  // elements of one block; of a wait: signals
  uint64_t tag = 0;  // the caller's, for profilers and error texts
  Multiplier multiplier = {};

  size_t block_bytes() const { return count * element_size(dtype); }
};

Descriptor describe(const Operation& operation);  // reads a multiplier's address
bool same_call(const Descriptor& a, const Descriptor& b);
std::string to_text(const Descriptor& call);  // "all_reduce(count=4, float32, sum)"

const char* dtype_name(unsigned dtype);

}  // namespace hostnccl

#include "core/flight_recorder.h"

#include <utility>

namespace pynccl {
namespace {

const char* op_text(ncclRedOp_t op) {
  constexpr const char* kNames[ncclNumOps] = {"sum", "prod", "max", "min", "avg"};
  return op < ncclNumOps ? kNames[op] : "user-defined";
}

using Kind = OperationKind;

bool reduces(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
}

bool has_root(Kind kind) {
  return kind == Kind::kBroadcast || kind == Kind::kReduce || kind == Kind::kGather ||
         kind == Kind::kScatter;
}

bool has_peer(Kind kind) { return kind >= Kind::kSend && kind <= Kind::kSignal; }

}  // namespace

const char* dtype_name(ncclDataType_t dtype) {
  constexpr const char* kNames[ncclNumTypes] = {
      "int8",    "uint8",   "int32",   "uint32",   "int64",       "uint64",
      "float16", "float32", "float64", "bfloat16", "float8_e4m3", "float8_e5m2"};
  return dtype < ncclNumTypes ? kNames[dtype] : "unknown";
}

const char* kind_name(OperationKind kind) {
  constexpr const char* kNames[] = {
      "all_reduce", "broadcast", "reduce", "all_gather", "reduce_scatter", "all_to_all", "gather",
      "scatter",    "send",      "recv",   "put_signal", "signal",         "wait_signal"};
  return kNames[static_cast<unsigned char>(plain(kind))];
}

std::string FlightRecord::text() const {
  std::string text = std::string(kind_name(kind)) + " #" + std::to_string(sequence) + " (";
  auto add = [&, first = true](const std::string& part) mutable {
    if (!std::exchange(first, false)) text += ", ";
    text += part;
  };
  const bool signals = kind == OperationKind::kSignal || kind == OperationKind::kWaitSignal;
  if (!signals) {
    add(dtype_name(dtype));
    add("count=" + std::to_string(count));
  }
  if (reduces(kind)) add(op_text(op));
  if (has_root(kind)) add("root=" + std::to_string(root_or_peer));
  if (has_peer(kind)) add("peer=" + std::to_string(root_or_peer));
  return text + ")";
}

void FlightRecorder::fail() {
  slots_[last() % kRecords].set(kState, std::uint64_t(FlightRecord::State::kFailed));
}

std::optional<FlightRecord> FlightRecorder::read(std::uint64_t sequence) const {
  const Slot& slot = slots_[sequence % kRecords];
  if (sequence == 0) return std::nullopt;  // what a slot has that was never written
  if (slot.fields[kSequence].load(std::memory_order_acquire) != sequence) return std::nullopt;
  const std::uint64_t call = slot.get(kCall);
  const FlightRecord record{sequence,
                            static_cast<OperationKind>(call & 0xff),
                            static_cast<ncclDataType_t>(call >> 8 & 0xff),
                            static_cast<ncclRedOp_t>(call >> 16 & 0xff),
                            static_cast<int>(static_cast<std::int32_t>(call >> 32)),
                            slot.get(kCount),
                            reinterpret_cast<CUstream>(slot.get(kStream)),
                            static_cast<std::int64_t>(slot.get(kIssued)),
                            static_cast<std::int64_t>(slot.get(kLimit)),
                            slot.get(kFingerprint),
                            static_cast<FlightRecord::State>(slot.get(kState))};
  std::atomic_thread_fence(std::memory_order_acquire);
  if (slot.get(kSequence) != sequence) return std::nullopt;
  return record;
}

}  // namespace pynccl

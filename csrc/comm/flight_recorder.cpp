#include "comm/flight_recorder.h"

#include <algorithm>
#include <cstdio>
#include <utility>

namespace pynccl {

using Kind = OperationKind;

const char* op_name(ncclRedOp_t op) {
  constexpr const char* kNames[ncclNumOps] = {"sum", "prod", "max", "min", "avg"};
  return op < ncclNumOps ? kNames[op] : "user-defined";
}

bool is_collective(Kind kind) { return kind < Kind::kSend; }

bool is_message(Kind kind) { return kind == Kind::kSend || kind == Kind::kRecv; }

bool reduces(Kind kind) {
  return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
}

bool has_root(Kind kind) {
  return kind == Kind::kBroadcast || kind == Kind::kReduce || kind == Kind::kGather ||
         kind == Kind::kScatter;
}

bool has_peer(Kind kind) { return kind >= Kind::kSend && kind <= Kind::kSignal; }

const char* dtype_name(ncclDataType_t dtype) {
  constexpr const char* kNames[ncclNumTypes] = {
      "int8",    "uint8",   "int32",   "uint32",   "int64",       "uint64",
      "float16", "float32", "float64", "bfloat16", "float8_e4m3", "float8_e5m2"};
  return dtype < ncclNumTypes ? kNames[dtype] : "unknown";
}

const char* kind_name(OperationKind kind) {
  constexpr const char* kNames[] = {
#define OPERATION(name, method, ...) #method,
#define ONE_SIDED(name, method) #method,
#include "comm/operations.inc"
  };
  return kNames[static_cast<unsigned char>(plain(kind))];
}

const char* FlightRecord::state_name(bool done) const {
  if (state == State::kFailed) return "failed";
  if (state == State::kCalled) return "called";
  if (state == State::kCaptured) return "captured";
  return done ? "done" : "issued";
}

std::string FlightRecord::text() const {
  return std::string(kind_name(kind)) + " #" + std::to_string(sequence) + " " + arguments();
}

std::string FlightRecord::call_text() const { return kind_name(kind) + arguments(); }

std::string FlightRecord::arguments() const {
  std::string text = "(";
  auto add = [&, first = true](const std::string& part) mutable {
    if (!std::exchange(first, false)) text += ", ";
    text += part;
  };
  const bool signals = kind == OperationKind::kSignal || kind == OperationKind::kWaitSignal;
  if (!signals) {
    add(dtype_name(dtype));
    add("count=" + std::to_string(count));
  }
  if (reduces(kind)) add(op_name(op));
  if (has_root(kind)) add("root=" + std::to_string(root_or_peer));
  if (has_peer(kind)) add("peer=" + std::to_string(root_or_peer));
  return text + ")";
}

std::string FlightIdentity::text(std::uint64_t id) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(id));
  return text;
}

void FlightRecorder::fail() {
  Slot& slot = slots_[last() % kRecords];
  const std::uint64_t number = slot.get(kState) >> kStateBits;
  slot.set(kState, number << kStateBits | std::uint64_t(FlightRecord::State::kFailed));
}

void FlightRecorder::identify(FlightIdentity identity) {
  const std::lock_guard lock(mutex_);
  identity_ = std::move(identity);
  if (counts_ || identity_.nranks < 1) return;
  counts_ = std::make_unique<std::atomic<std::uint32_t>[]>(
      2 * static_cast<std::size_t>(identity_.nranks));
  messages_.store(counts_.get(), std::memory_order_release);
}

void FlightRecorder::set_captured(std::uint64_t sequence) {
  Slot& slot = slots_[sequence % kRecords];
  std::uint64_t word = slot.get(kState);
  if (slot.get(kSequence) != sequence || state(word) != FlightRecord::State::kIssued) return;
  constexpr std::uint64_t kMore =
      std::uint64_t(FlightRecord::State::kCaptured) - std::uint64_t(FlightRecord::State::kIssued);
  slot.fields[kState].compare_exchange_strong(word, word + kMore);
}

FlightIdentity FlightRecorder::identity() const {
  const std::lock_guard lock(mutex_);
  return identity_;
}

void FlightRecorder::set_failure(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (failure_.empty()) failure_ = text;
}

std::string FlightRecorder::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

std::vector<FlightRecord> FlightRecorder::read_all() const {
  const std::uint64_t last = this->last();
  std::vector<FlightRecord> records;
  for (std::uint64_t number = last - std::min<std::uint64_t>(last, kRecords) + 1; number <= last;
       ++number)
    if (const auto record = read(number)) records.push_back(*record);
  return records;
}

std::optional<FlightRecord> FlightRecorder::read(std::uint64_t sequence) const {
  const Slot& slot = slots_[sequence % kRecords];
  if (sequence == 0) return std::nullopt;  // an unwritten slot
  if (slot.get(kSequence) != sequence) return std::nullopt;
  const std::uint64_t call = slot.get(kCall);
  const std::uint64_t word = slot.get(kState);
  const FlightRecord record{sequence,
                            word >> kStateBits,
                            static_cast<OperationKind>(call & 0xff),
                            static_cast<ncclDataType_t>(call >> 8 & 0xff),
                            static_cast<ncclRedOp_t>(call >> 16 & 0xff),
                            static_cast<int>(static_cast<std::int32_t>(call >> 32)),
                            slot.get(kCount),
                            reinterpret_cast<CUstream>(slot.get(kStream)),
                            static_cast<std::int64_t>(slot.get(kIssued)),
                            static_cast<std::int64_t>(slot.get(kLimit)),
                            slot.get(kFingerprint),
                            state(word)};
  if (slot.get(kSequence) != sequence) return std::nullopt;
  return record;
}

}  // namespace pynccl

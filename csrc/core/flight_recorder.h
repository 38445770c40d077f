// FlightRecorder: the last operations of a communicator on this rank, and a fingerprint of all of
// them. It is always on. One thread at a time writes; any thread reads.
#pragma once

#include <time.h>

#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>

#include "core/operation.h"

namespace pynccl {

// Nanoseconds of CLOCK_MONOTONIC_COARSE. It has a resolution of some milliseconds and costs a
// fraction of a precise clock.
inline std::int64_t coarse_time() noexcept {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

// The same of CLOCK_MONOTONIC.
inline std::int64_t precise_time() noexcept {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return std::int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

struct FlightRecord {
  // kCalled: the function of nccl.h has not returned. kIssued: it has.
  enum class State : std::uint64_t { kCalled, kIssued, kFailed };

  std::uint64_t sequence;  // from 1, in the order of issue
  OperationKind kind;      // without the flag
  ncclDataType_t dtype;
  ncclRedOp_t op;
  int root_or_peer;
  std::size_t count;  // as in Operation
  CUstream stream;
  std::int64_t issued;        // coarse_time() before the call
  std::int64_t limit;         // ns until it must be done; kNoLimit
  std::uint64_t fingerprint;  // of the collectives up to this operation
  State state;

  static constexpr std::int64_t kNoLimit = INT64_MAX;

  bool late(std::int64_t now) const { return limit != kNoLimit && now - issued >= limit; }
  std::string text() const;  // "all_reduce #5 (float32, count=4, sum)"
};

// The name of an operation in pynccl's functions: "all_reduce".
const char* kind_name(OperationKind kind);
const char* dtype_name(ncclDataType_t dtype);

class FlightRecorder {
  enum Field { kSequence, kState, kIssued, kLimit, kCount, kStream, kCall, kFingerprint, kFields };

  struct alignas(64) Slot {
    std::array<std::atomic<std::uint64_t>, kFields> fields;
    std::uint64_t get(Field field) const { return fields[field].load(std::memory_order_relaxed); }
    void set(Field field, std::uint64_t value) {
      fields[field].store(value, std::memory_order_relaxed);
    }
  };

 public:
  static constexpr std::size_t kRecords = 512;

  // The record of a call, from construction to destruction.
  class Call {
   public:
    [[gnu::always_inline]] Call(FlightRecorder& recorder, OperationKind kind, const Operation& o,
                                std::int64_t now, std::int64_t limit)
        : slot_(recorder.begin(kind, o, now, limit)) {}
    [[gnu::always_inline]] ~Call() {
      if (slot_.get(kState) == std::uint64_t(FlightRecord::State::kCalled)) [[likely]]
        slot_.set(kState, std::uint64_t(FlightRecord::State::kIssued));
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Slot& slot_;
  };

  void fail();  // the last operation has failed

  std::uint64_t last() const { return last_.load(std::memory_order_acquire); }  // 0 for none
  std::uint64_t fingerprint() const { return fingerprint_.load(std::memory_order_relaxed); }
  // None where the record was overwritten, or is being written.
  std::optional<FlightRecord> read(std::uint64_t sequence) const;

 private:
  // The part of a fingerprint that must be equal on all ranks. Numbers of user-defined operators
  // are a rank's own.
  static std::uint64_t call_word(OperationKind kind, const Operation& o) {
    const auto op = static_cast<unsigned>(o.op) < 0xff ? static_cast<unsigned>(o.op) : 0xffu;
    return std::uint64_t{static_cast<unsigned char>(plain(kind))} |
           std::uint64_t{static_cast<unsigned char>(o.dtype)} << 8 | std::uint64_t{op} << 16 |
           std::uint64_t{static_cast<std::uint32_t>(o.root_or_peer)} << 32;
  }

  [[gnu::always_inline]] Slot& begin(OperationKind kind, const Operation& o, std::int64_t now,
                                     std::int64_t limit) {
    const std::uint64_t sequence = last_.load(std::memory_order_relaxed) + 1;
    Slot& slot = slots_[sequence % kRecords];
    const std::uint64_t word = call_word(kind, o);
    std::uint64_t fingerprint = fingerprint_.load(std::memory_order_relaxed);
    if (plain(kind) < OperationKind::kSend) {
      fingerprint = (std::rotl(fingerprint, 23) ^ word ^ o.count << 7) * 0x9e3779b97f4a7c15;
      fingerprint_.store(fingerprint, std::memory_order_relaxed);
    }
    slot.set(kSequence, 0);  // a reader discards what it has read of the old record
    std::atomic_thread_fence(std::memory_order_release);
    slot.set(kState, std::uint64_t(FlightRecord::State::kCalled));
    slot.set(kIssued, static_cast<std::uint64_t>(now));
    slot.set(kLimit, static_cast<std::uint64_t>(limit));
    slot.set(kCount, o.count);
    slot.set(kStream, reinterpret_cast<std::uint64_t>(o.stream));
    slot.set(kCall, word);
    slot.set(kFingerprint, fingerprint);
    slot.fields[kSequence].store(sequence, std::memory_order_release);
    last_.store(sequence, std::memory_order_release);
    return slot;
  }

  std::atomic<std::uint64_t> last_ = 0;
  std::atomic<std::uint64_t> fingerprint_ = 0;
  std::array<Slot, kRecords> slots_{};
};

}  // namespace pynccl

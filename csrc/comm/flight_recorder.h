// FlightRecorder: records the last operations of a communicator on this rank, and a fingerprint of
// all of them. It is always on. One thread at a time writes, any thread reads.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/operation.h"
#include "nccl/clock.h"

namespace pynccl {

struct FlightRecord {
  // kCalled: the nccl.h function has not returned. kIssued: it has. kCaptured: the operation runs
  // in the launches of a graph.
  enum class State : std::uint64_t { kCalled, kIssued, kFailed, kCaptured };

  std::uint64_t sequence;  // from 1, in the order of issue
  // From 1: the number of a collective among the collectives, or of a message among the messages in
  // the same direction with the same peer. 0: unknown or meaningless.
  std::uint64_t number;
  OperationKind kind;  // without kConfigured
  ncclDataType_t dtype;
  ncclRedOp_t op;
  int root_or_peer;
  std::size_t count;  // as in Operation
  CUstream stream;
  std::int64_t issued;        // coarse_time() before the call
  std::int64_t limit;         // ns until it must be done, or kNoLimit
  std::uint64_t fingerprint;  // of the collectives up to this operation
  State state;

  static constexpr std::int64_t kNoLimit = INT64_MAX;

  const char* state_name(bool done) const;
  std::string text() const;       // "all_reduce #5 (float32, count=4, sum)"
  std::string call_text() const;  // "all_reduce(float32, count=4, sum)"
  std::string arguments() const;  // "(float32, count=4, sum)"
};

// The name of an operation in pynccl's functions: "all_reduce".
const char* kind_name(OperationKind kind);
const char* dtype_name(ncclDataType_t dtype);
const char* op_name(ncclRedOp_t op);

bool is_collective(OperationKind kind);
bool is_message(OperationKind kind);
bool reduces(OperationKind kind);
bool has_root(OperationKind kind);
bool has_peer(OperationKind kind);

// Identifies a communicator to tools that compare the records of its ranks.
struct FlightIdentity {
  std::uint64_t id = 0;      // equal on all ranks; unique to the communicator
  std::uint64_t joined = 0;  // after grow(): the id on the ranks that joined, if known
  std::uint64_t parent = 0;  // the id of the communicator it was created from
  std::string name;          // set by the user
  std::string creator;       // "ncclCommSplit"
  int rank = -1;             // -1: not known yet
  int nranks = 0;
  int device = -1;

  // Derives an id from a word that all ranks know.
  static std::uint64_t mix(std::uint64_t id, std::uint64_t word) {
    return (std::rotl(id, 23) ^ word) * 0x9e3779b97f4a7c15;
  }
  static std::string text(std::uint64_t id);  // 16 hexadecimal digits
};

class FlightRecorder {
  enum Field { kSequence, kState, kIssued, kLimit, kCount, kStream, kCall, kFingerprint, kFields };

  struct alignas(64) Slot {
    std::array<std::atomic<std::uint64_t>, kFields> fields;
    // Acquire and release: a reader that sees a value also sees the fields set before it.
    std::uint64_t get(Field field) const { return fields[field].load(std::memory_order_acquire); }
    void set(Field field, std::uint64_t value) {
      fields[field].store(value, std::memory_order_release);
    }
  };

 public:
  static constexpr std::size_t kRecords = 512;

  // The scope of a call: kCalled at construction, kIssued at destruction unless it failed.
  class Call {
   public:
    [[gnu::always_inline]] Call(FlightRecorder& recorder, OperationKind kind, const Operation& o,
                                std::int64_t now, std::int64_t limit)
        : slot_(recorder.begin(kind, o, now, limit)) {}
    [[gnu::always_inline]] ~Call() {
      const std::uint64_t word = slot_.get(kState);
      if (state(word) == FlightRecord::State::kCalled) [[likely]]
        slot_.set(kState, word + 1);
    }
    Call(const Call&) = delete;
    Call& operator=(const Call&) = delete;

   private:
    Slot& slot_;
  };

  void fail();  // marks the last operation as failed
  void set_captured(std::uint64_t sequence);

  // Until rank and size are known, messages have no numbers.
  void identify(FlightIdentity identity);
  FlightIdentity identity() const;
  void set_failure(const std::string& text);  // only the first one is stored
  std::string failure() const;

  std::uint64_t last() const { return last_.load(std::memory_order_acquire); }  // 0 for none
  // FlightRecord::number of the last operation. Only for the writing thread.
  std::uint64_t number_of_last() const {
    return slots_[last() % kRecords].get(kState) >> kStateBits;
  }
  std::uint64_t fingerprint() const { return fingerprint_.load(std::memory_order_relaxed); }
  // None if the record was overwritten or is being written.
  std::optional<FlightRecord> read(std::uint64_t sequence) const;
  std::vector<FlightRecord> read_all() const;  // oldest first
  std::uint64_t collectives() const { return collectives_.load(std::memory_order_relaxed); }
  // The number of sends to a rank, or of receives from it.
  std::uint64_t messages(OperationKind kind, int peer) const {
    const std::atomic<std::uint32_t>* const messages = messages_.load(std::memory_order_acquire);
    return messages ? messages[message_index(kind, peer)].load(std::memory_order_relaxed) : 0;
  }

 private:
  // One field contains both the state and the number of the operation.
  static constexpr int kStateBits = 2;
  static FlightRecord::State state(std::uint64_t word) {
    return static_cast<FlightRecord::State>(word & ((1u << kStateBits) - 1));
  }
  static_assert(std::uint64_t(FlightRecord::State::kCalled) + 1 ==
                std::uint64_t(FlightRecord::State::kIssued));

  // The part of a call that must be equal on all ranks. The numbers of user-defined operators may
  // differ.
  static std::uint64_t call_word(OperationKind kind, const Operation& o) {
    const auto op = std::min<std::uint64_t>(static_cast<unsigned>(o.op), ncclNumOps);
    return std::uint64_t{static_cast<unsigned char>(plain(kind))} |
           std::uint64_t{static_cast<unsigned char>(o.dtype)} << 8 | op << 16 |
           std::uint64_t{static_cast<std::uint32_t>(o.root_or_peer)} << 32;
  }

  [[gnu::always_inline]] Slot& begin(OperationKind kind, const Operation& o, std::int64_t now,
                                     std::int64_t limit) {
    const std::uint64_t sequence = last_.load(std::memory_order_relaxed) + 1;
    Slot& slot = slots_[sequence % kRecords];
    const std::uint64_t word = call_word(kind, o);
    std::uint64_t fingerprint = fingerprint_.load(std::memory_order_relaxed);
    std::uint64_t number = 0;
    if (plain(kind) < OperationKind::kSend) {
      number = collectives_.load(std::memory_order_relaxed) + 1;
      collectives_.store(number, std::memory_order_relaxed);
      fingerprint = FlightIdentity::mix(fingerprint, word ^ o.count << 7);
      fingerprint_.store(fingerprint, std::memory_order_relaxed);
    } else if (plain(kind) <= OperationKind::kRecv) {
      number = next_message(plain(kind), o.root_or_peer);
    }
    slot.set(kSequence, 0);                  // readers of the old record discard it
    slot.set(kState, number << kStateBits);  // kCalled
    slot.set(kIssued, static_cast<std::uint64_t>(now));
    slot.set(kLimit, static_cast<std::uint64_t>(limit));
    slot.set(kCount, o.count);
    slot.set(kStream, reinterpret_cast<std::uint64_t>(o.stream));
    slot.set(kCall, word);
    slot.set(kFingerprint, fingerprint);
    slot.set(kSequence, sequence);
    last_.store(sequence, std::memory_order_release);
    return slot;
  }

  static std::uint32_t message_index(OperationKind kind, int peer) {
    static_assert((std::uint64_t(OperationKind::kSend) & 1) == 0);  // and kRecv is the next
    const std::uint32_t receives = static_cast<std::uint32_t>(kind) & 1;
    return static_cast<std::uint32_t>(peer) * 2 + receives;
  }

  [[gnu::always_inline]] std::uint64_t next_message(OperationKind kind, int peer) {
    std::atomic<std::uint32_t>* const messages = messages_.load(std::memory_order_acquire);
    if (!messages) [[unlikely]]
      return 0;
    std::atomic<std::uint32_t>& count = messages[message_index(kind, peer)];
    const std::uint32_t number = count.load(std::memory_order_relaxed) + 1;
    count.store(number, std::memory_order_relaxed);
    return number;
  }

  std::atomic<std::uint64_t> last_ = 0;
  std::atomic<std::uint64_t> fingerprint_ = 0;
  std::atomic<std::uint64_t> collectives_ = 0;                   // the number of calls
  std::atomic<std::atomic<std::uint32_t>*> messages_ = nullptr;  // counts_ once allocated
  std::array<Slot, kRecords> slots_{};
  mutable std::mutex mutex_;  // guards the following
  FlightIdentity identity_;
  std::string failure_;
  std::unique_ptr<std::atomic<std::uint32_t>[]> counts_;  // sends to and receives from each rank
};

}  // namespace pynccl

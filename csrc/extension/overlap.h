// Detects operations whose memory overlaps in positions that NCCL does not define as in place. All
// front ends check here before they issue an operation or a group.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "abi/element_size.h"
#include "capsule.h"

namespace pynccl {

// Bytes of memory.
struct MemoryRange {
  std::uintptr_t begin = 0;
  std::size_t size = 0;

  std::uintptr_t end() const { return begin + size; }
  bool overlaps(const MemoryRange& other) const {
    return begin < other.end() && other.begin < end();
  }
};

// The two buffers of an operation on one rank.
struct OperationMemory {
  MemoryRange input, output;
  bool reads = true, writes = true;            // whether this rank uses the input, and the output
  std::optional<std::ptrdiff_t> in_place = 0;  // NCCL's in-place offset from output to input

  // Whether the buffers are disjoint or in NCCL's in-place position.
  bool is_defined() const {
    return !input.overlaps(output) ||
           (in_place &&
            static_cast<std::ptrdiff_t>(input.begin) - static_cast<std::ptrdiff_t>(output.begin) ==
                *in_place);
  }
};

// kind: a PyncclOperationKind; block: the bytes of count elements.
[[gnu::always_inline]] inline OperationMemory memory_of(int kind, const void* sendbuff,
                                                        const void* recvbuff, std::size_t block,
                                                        int root_or_peer, int rank, int nranks) {
  const MemoryRange sent{reinterpret_cast<std::uintptr_t>(sendbuff), block};
  const MemoryRange received{reinterpret_cast<std::uintptr_t>(recvbuff), block};
  const auto all = [nranks](const MemoryRange& one) {
    return MemoryRange{one.begin, one.size * static_cast<std::size_t>(nranks)};
  };
  const bool root = rank == root_or_peer;
  const std::ptrdiff_t own = static_cast<std::ptrdiff_t>(block) * rank;
  switch (kind) {
    case PYNCCL_ALL_REDUCE:
      return {sent, received};
    case PYNCCL_BROADCAST:
      return {sent, received, root};
    case PYNCCL_REDUCE:
      return {sent, received, true, root};
    case PYNCCL_ALL_GATHER:
      return {sent, all(received), true, true, own};
    case PYNCCL_REDUCE_SCATTER:
      return {all(sent), received, true, true, -own};
    case PYNCCL_ALL_TO_ALL:  // not in place
      return {all(sent), all(received), true, true, std::nullopt};
    case PYNCCL_GATHER:
      return {sent, all(received), true, root, own};
    case PYNCCL_SCATTER:
      return {all(sent), received, root, true, -own};
    case PYNCCL_SEND:
    case PYNCCL_PUT_SIGNAL:
      return {sent, {}, true, false};
    case PYNCCL_RECV:
      return {{}, received, false, true};
    default:
      return {{}, {}, false, false};
  }
}

// An overlap of memory that one operation of a group writes and another reads or writes, or of the
// two buffers of one operation outside NCCL's in-place position.
struct Overlap {
  std::size_t writer, other;  // the indices of the operations in the group
  bool other_writes;
};

// Searches the operations of a group, which run in any order. Inputs may overlap inputs. A message
// from a rank to itself may be in place. Receives may share a buffer, which then contains one of
// the messages: torch's pipelines begin with messages whose values they do not use.
class OverlapSearch {
 public:
  void reserve(std::size_t operations) {
    reads_.reserve(operations);
    writes_.reserve(operations);
  }

  // kind, root_or_peer and rank: see memory_of(); communicator: identifies messages to itself.
  void add(const OperationMemory& memory, int kind, const void* communicator, bool to_itself) {
    const std::size_t index = added_++;
    std::size_t message = 0;
    if (to_itself && (kind == PYNCCL_SEND || kind == PYNCCL_RECV)) [[unlikely]]
      message = message_to_itself(communicator, kind == PYNCCL_SEND);
    const auto in_place = memory.in_place;
    if (memory.reads && memory.input.size)
      reads_.push_back({memory.input, index, in_place, message, false});
    if (memory.writes && memory.output.size)
      writes_.push_back({memory.output, index, in_place, message, kind == PYNCCL_RECV});
  }

  std::optional<Overlap> find() {
    const auto earlier = [](const Access& a, const Access& b) {
      return a.memory.begin < b.memory.begin;
    };
    if (!std::is_sorted(writes_.begin(), writes_.end(), earlier))
      std::sort(writes_.begin(), writes_.end(), earlier);
    writes_.erase(std::unique(writes_.begin(), writes_.end(), shares), writes_.end());
    for (std::size_t i = 1; i < writes_.size(); ++i)
      if (writes_[i - 1].memory.overlaps(writes_[i].memory)) {
        const auto [first, last] = std::minmax(writes_[i - 1].operation, writes_[i].operation);
        return Overlap{last, first, true};
      }
    for (const Access& read : reads_) {
      // The written ranges are disjoint here. Search those that begin before the end of this one.
      auto write = std::lower_bound(
          writes_.begin(), writes_.end(), read.memory.end(),
          [](const Access& one, std::uintptr_t end) { return one.memory.begin < end; });
      while (write != writes_.begin() && (--write)->memory.end() > read.memory.begin)
        if (!defined(read, *write)) return Overlap{write->operation, read.operation, false};
    }
    return std::nullopt;
  }

 private:
  struct Access {
    MemoryRange memory;
    std::size_t operation;
    std::optional<std::ptrdiff_t> in_place;
    std::size_t message;  // the same number for both sides of a message to itself, else 0
    bool receives;        // whether it is the output of a receive
  };

  struct Itself {
    const void* communicator;
    std::size_t number, sends = 0, receives = 0;
  };

  static bool shares(const Access& a, const Access& b) {
    return a.receives && b.receives && a.memory.begin == b.memory.begin &&
           a.memory.size == b.memory.size;
  }

  static bool defined(const Access& read, const Access& write) {
    if (read.operation == write.operation)
      return OperationMemory{read.memory, write.memory, true, true, read.in_place}.is_defined();
    return read.message && read.message == write.message &&
           read.memory.begin == write.memory.begin && read.memory.size == write.memory.size;
  }

  // The messages of a rank to itself match in order.
  std::size_t message_to_itself(const void* communicator, bool sends) {
    auto found = std::find_if(itself_.begin(), itself_.end(),
                              [&](const Itself& one) { return one.communicator == communicator; });
    if (found == itself_.end()) found = itself_.insert(found, {communicator, itself_.size()});
    return 1 + found->number + (sends ? found->sends++ : found->receives++) * kMaxCommunicators;
  }

  static constexpr std::size_t kMaxCommunicators = std::size_t{1} << 32;

  std::size_t added_ = 0;
  std::vector<Access> reads_, writes_;
  std::vector<Itself> itself_;
};

}  // namespace pynccl

#include "comm/overlap.h"

#include <string>

#include "comm/flight_recorder.h"

namespace pynccl {
namespace {

OperationMemory memory_of(Communicator& communicator, const Operation& o) {
  const std::size_t element = o.dtype < ncclNumTypes ? element_size(o.dtype) : 0;
  return pynccl::memory_of(static_cast<int>(plain(o.kind)), o.sendbuff, o.recvbuff,
                           o.count * element, o.root_or_peer, communicator.rank(),
                           communicator.nranks());
}

}  // namespace

OverlapCheck::OverlapCheck(std::size_t operations) {
  search_.reserve(operations);
  kinds_.reserve(operations);
}

void OverlapCheck::add(Communicator& communicator, const Operation& operation) {
  search_.add(memory_of(communicator, operation), static_cast<int>(plain(operation.kind)),
              &communicator, operation.root_or_peer == communicator.rank());
  kinds_.push_back(operation.kind);
}

void OverlapCheck::run() {
  const std::optional<Overlap> overlap = search_.find();
  if (!overlap) [[likely]]
    return;
  const auto name = [&](std::size_t index) {
    std::string text = kind_name(kinds_[index]);
    if (kinds_.size() > 1)
      text +=
          " (operation " + std::to_string(index + 1) + " of " + std::to_string(kinds_.size()) + ")";
    return text;
  };
  const std::string output = "the output of " + name(overlap->writer);
  if (overlap->writer == overlap->other)
    throw OverlapError(output +
                       " overlaps its input; only the in-place position or separate memory is "
                       "allowed");
  throw OverlapError(output + " overlaps the " + (overlap->other_writes ? "output" : "input") +
                     " of " + name(overlap->other) +
                     "; the operations of a group run in any order, so they need separate memory");
}

void check_overlap(Communicator& communicator, const Operation& operation) {
  const OperationMemory memory = memory_of(communicator, operation);
  if (!memory.reads || !memory.writes || memory.is_defined()) [[likely]]
    return;
  OverlapCheck check(1);
  check.add(communicator, operation);
  check.run();
}

}  // namespace pynccl

#include "hostnccl/operations/collective.h"

#include "hostnccl/kernels/copy.h"
#include "hostnccl/operations/tasks.h"

namespace hostnccl {
namespace {

constexpr size_t kBeyondCaches = size_t{4} << 20;  // bytes. A larger copy evicts itself

Task run_single_rank(Communicator& comm, const Operation& operation) {
  const CollectiveCall call(comm, operation);
  if (call.traits.reduces) {
    call.collective.sources()[0] = operation.send;
    if (operation.multiplier.from != Multiplier::From::None) {
      call.collective.scalars()[0] = describe(operation).scalar;
    }
    call.reduce_into(operation.recv, operation.count);
  } else {
    call.copy_own_block(0, operation.block_bytes());
  }
  co_return;
}

}  // namespace

Pattern pattern_of(Kind kind) {
  const CollectiveTraits& traits = traits_of(kind);
  if (traits.reduces) return Pattern::Reduction;
  return traits.has_root() ? Pattern::Rooted : Pattern::Exchange;
}

size_t contribution_of(const Operation& operation, int nranks) {
  const bool of_all = traits_of(operation.kind).block_per_destination;
  return operation.block_bytes() * (of_all ? static_cast<size_t>(nranks) : 1);
}

Path path_of(const Communicator& comm, const Operation& operation) {
  if (operation.path != Path::Any) return operation.path;
  const size_t direct_from = comm.segment().tuning().direct[size_t(pattern_of(operation.kind))];
  const size_t contribution = contribution_of(operation, comm.nranks());
  return contribution >= direct_from ? Path::Direct : Path::Staged;
}

CollectiveCall::CollectiveCall(Communicator& communicator, const Operation& called)
    : comm(communicator),
      collective(communicator.collective()),
      segment(communicator.segment()),
      operation(called),
      traits(traits_of(called.kind)),
      rank(communicator.rank()),
      nranks(communicator.nranks()),
      root(called.root_or_peer),
      element(element_size(called.dtype)) {}

size_t CollectiveCall::offset_in_send(int destination) const {
  return traits.block_per_destination ? static_cast<size_t>(destination) * operation.block_bytes()
                                      : 0;
}

size_t CollectiveCall::offset_in_recv(int source) const {
  return traits.reduces || traits.only_root_sends
             ? 0
             : static_cast<size_t>(source) * operation.block_bytes();
}

const char* CollectiveCall::own_block() const {
  return static_cast<const char*>(operation.send) + offset_in_send(rank);
}

const Descriptor& CollectiveCall::check_descriptor(int peer, const Descriptor& own) const {
  const Descriptor& other = collective.descriptor_of(peer);
  if (!same_call(other, own)) {
    fail(abi::ncclInvalidUsage, "the ranks make different calls: %s calls %s, %s calls %s",
         segment.name_of(rank).c_str(), to_text(own).c_str(), segment.name_of(peer).c_str(),
         to_text(other).c_str());
  }
  collective.scalars()[static_cast<size_t>(peer)] = other.scalar;
  return other;
}

void CollectiveCall::copy_own_block(size_t from, size_t bytes) const {
  char* to = recv_at(offset_in_recv(rank) + from);
  const char* source = own_block() + from;
  if (bytes != 0 && to != source) stage(to, source, bytes, bytes >= kBeyondCaches);
}

void CollectiveCall::reduce_into(void* to, size_t count) const {
  const bool multiplies = operation.multiplier.from != Multiplier::From::None;
  reduce(to, collective.sources(), multiplies ? collective.scalars() : nullptr, nranks, count,
         operation.dtype, operation.reduce);
}

bool CollectiveCall::in_windows(const WindowSet& windows) const {
  const size_t sent = operation.block_bytes() * static_cast<size_t>(blocks());
  const size_t fetched = operation.kind == Kind::AllReduce ? operation.block_bytes() : 0;
  return windows.identity() != 0 && windows.contains(operation.send, sends() ? sent : 0, rank) &&
         windows.contains(operation.recv, fetched, rank);
}

Task run_collective(Communicator& comm, const Operation& operation) {
  if (comm.nranks() == 1) return run_single_rank(comm, operation);
  const CollectiveCall call(comm, operation);
  if (operation.path == Path::Staged) return run_staged(comm, operation);
  const bool direct = path_of(comm, operation) == Path::Direct;
  const size_t contribution = contribution_of(operation, comm.nranks());
  if (comm.windows().any() && contribution >= comm.segment().tuning().window) {
    std::shared_ptr<const WindowSet> windows = comm.windows().open_set();
    if (direct || call.in_windows(*windows)) {
      return run_direct(comm, operation, std::move(windows), !direct);
    }
  }
  return direct ? run_direct(comm, operation, {}, false) : run_staged(comm, operation);
}

}  // namespace hostnccl

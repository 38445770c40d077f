// What the flight record says of a communicator. Its id follows from what all ranks know: the
// unique id, or the parent and how it was made from the parent.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "comm/communicator.h"

namespace pynccl {
namespace {

// A word of each way to make a communicator from another.
constexpr std::uint64_t kSplit = 1, kShrink = 2, kGrow = 3, kRecover = 4, kBorrow = 5;

std::uint64_t id_of(const std::vector<ncclUniqueId>& ids) {
  std::uint64_t id = 0;
  for (const ncclUniqueId& one : ids)
    for (std::size_t i = 0; i < sizeof one; i += sizeof id) {
      std::uint64_t word;
      std::memcpy(&word, reinterpret_cast<const char*>(&one) + i, sizeof word);
      id = FlightIdentity::mix(id, word);
    }
  return id;
}

}  // namespace

void Communicator::derive_id(const Communicator& parent, std::initializer_list<std::uint64_t> words,
                             std::vector<int> ranks) {
  identity_.parent = identity_.id = parent.identity_.id;
  const auto mix = [&](auto word) {
    identity_.id = FlightIdentity::mix(identity_.id, static_cast<std::uint64_t>(word));
  };
  std::ranges::for_each(words, mix);
  std::ranges::sort(ranks);
  std::ranges::for_each(ranks, mix);
}

void Communicator::identify_new(const std::vector<ncclUniqueId>& ids) { identity_.id = id_of(ids); }

void Communicator::identify_local() {
  static std::atomic<std::uint64_t> made = 0;
  const auto now = static_cast<std::uint64_t>(precise_time());
  identity_.id =
      FlightIdentity::mix(FlightIdentity::mix(now, static_cast<std::uint64_t>(getpid())), ++made);
}

void Communicator::identify_split(Communicator& parent, int color) {
  derive_id(parent, {kSplit, ++parent.splits_, static_cast<std::uint64_t>(color)});
}

// Not all ranks may have made the same number of attempts, so only the children that are open
// count.
void Communicator::identify_shrunk(Communicator& parent, const std::vector<int>& excluded) {
  std::vector<std::uint64_t> open;
  std::erase_if(parent.shrunk_, [&](const auto& one) {
    const auto child = one.lock();
    if (!child || child->closed()) return true;
    open.push_back(child->identity_.id);
    return false;
  });
  std::uint64_t number = 0;
  do derive_id(parent, {kShrink, number++}, excluded);
  while (std::ranges::find(open, identity_.id) != open.end());
  parent.shrunk_.push_back(weak_from_this());
}

// Without a number: the parent is aborted afterwards.
void Communicator::identify_recovered(const Communicator& parent, const std::vector<int>& lost) {
  derive_id(parent, {kRecover}, lost);
}

void Communicator::identify_grown(Communicator& parent, const std::optional<ncclUniqueId>& id) {
  derive_id(parent, {kGrow, ++parent.grows_});
  if (id) identity_.joined = id_of({*id});
}

// Nothing of a foreign handle is known to all ranks but its size and their order of borrowing.
void Communicator::identify_borrowed(Communicator* owner) {
  static std::atomic<std::uint64_t> borrowed = 0;
  if (owner)
    derive_id(*owner, {kBorrow, ++owner->borrows_});
  else
    identity_.id = FlightIdentity::mix(FlightIdentity::mix(kBorrow, ++borrowed),
                                       static_cast<std::uint64_t>(nranks_));
}

void Communicator::publish_identity() {
  const std::lock_guard lock(mutex_);
  identity_.creator = creator_;
  identity_.rank = rank_;
  identity_.nranks = nranks_;
  identity_.device = device_;
  deadlines_->recorder().identify(identity_);
}

void Communicator::set_name(const std::string& name) {
  {
    const std::lock_guard lock(mutex_);
    identity_.name = name;
  }
  publish_identity();
}

}  // namespace pynccl

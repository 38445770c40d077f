#include "hostnccl/communicator/derivations.h"

#include <string>

namespace hostnccl {
namespace {

// "0,3"
std::string to_text(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += format("%s%d", text.empty() ? "" : ",", rank);
  return text;
}

}  // namespace

Derivations::Scope::Scope(Derivations& all, Creation& creation) : all_(all), creation_(creation) {
  const std::lock_guard lock(all_.mutex_);
  all_.running_.push_back(&creation_);
}

Derivations::Scope::~Scope() {
  const std::lock_guard lock(all_.mutex_);
  std::erase(all_.running_, &creation_);
}

bool Derivations::end(Creation::End how) {
  const std::lock_guard lock(mutex_);
  for (Creation* creation : running_) creation->end(how);
  return !running_.empty();
}

RendezvousKey Derivations::shrink_key(const Secret& parent, const std::vector<int>& excluded) {
  const std::lock_guard lock(mutex_);
  const uint32_t number = shrinks_[excluded]++;
  return derive_key(parent,
                    format("shrink %u %u %s", recovery_, number, to_text(excluded).c_str()));
}

void Derivations::begin_recovery(uint32_t number) {
  const std::lock_guard lock(mutex_);
  recovery_ = number;
  shrinks_.clear();
  grow_key_.reset();
}

abi::ncclUniqueId Derivations::make_grow_id() {
  const std::lock_guard lock(mutex_);
  if (grow_key_) {
    fail(abi::ncclInvalidUsage,
         "comm has an id from an earlier ncclCommGetUniqueId: pass it to ncclCommGrow first");
  }
  const abi::ncclUniqueId id = make_unique_id(Purpose::Grow);
  grow_key_ = read_unique_id(id, Purpose::Grow, "uniqueId").key;
  return id;
}

void Derivations::check_grow_id(const RendezvousKey& key) const {
  const std::lock_guard lock(mutex_);
  if (grow_key_ && *grow_key_ == key) return;
  fail(abi::ncclInvalidArgument,
       "uniqueId was not created by ncclCommGetUniqueId for this rank of comm, or has been used");
}

bool Derivations::growing() const {
  const std::lock_guard lock(mutex_);
  return grow_key_.has_value();
}

void Derivations::use_grow_id() {
  const std::lock_guard lock(mutex_);
  grow_key_.reset();
}

}  // namespace hostnccl

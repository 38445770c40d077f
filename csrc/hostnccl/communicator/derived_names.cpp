#include "hostnccl/communicator/derived_names.h"

#include <string>

namespace hostnccl {
namespace {

std::string to_text(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += format("%s%d", text.empty() ? "" : ",", rank);
  return text;
}

}  // namespace

RendezvousName DerivedNames::shrink_name(const RendezvousName& parent,
                                         const std::vector<int>& excluded) {
  const std::lock_guard lock(mutex_);
  const uint32_t number = shrinks_[excluded]++;
  return derived_name(parent, format("shrink %u %s", number, to_text(excluded).c_str()));
}

abi::ncclUniqueId DerivedNames::make_grow_id() {
  const std::lock_guard lock(mutex_);
  if (grow_name_) {
    fail(abi::ncclInvalidUsage,
         "the uniqueId that an earlier ncclCommGetUniqueId made for this comm has not been used by "
         "ncclCommGrow yet");
  }
  const abi::ncclUniqueId id = make_unique_id(Purpose::Grow);
  grow_name_ = read_unique_id(id, Purpose::Grow, "uniqueId").name;
  return id;
}

void DerivedNames::check_grow_id(const RendezvousName& name) const {
  const std::lock_guard lock(mutex_);
  if (grow_name_ && *grow_name_ == name) return;
  fail(abi::ncclInvalidArgument,
       "uniqueId was not made by ncclCommGetUniqueId for this rank of comm, or has been used "
       "already");
}

bool DerivedNames::growing() const {
  const std::lock_guard lock(mutex_);
  return grow_name_.has_value();
}

void DerivedNames::use_grow_id() {
  const std::lock_guard lock(mutex_);
  grow_name_.reset();
}

}  // namespace hostnccl

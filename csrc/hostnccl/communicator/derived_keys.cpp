#include "hostnccl/communicator/derived_keys.h"

#include <string>

namespace hostnccl {
namespace {

std::string to_text(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks) text += format("%s%d", text.empty() ? "" : ",", rank);
  return text;
}

}  // namespace

RendezvousKey DerivedKeys::shrink_key(const Secret& parent, const std::vector<int>& excluded) {
  const std::lock_guard lock(mutex_);
  const uint32_t number = shrinks_[excluded]++;
  return derive_key(parent,
                    format("shrink %u %u %s", recovery_, number, to_text(excluded).c_str()));
}

void DerivedKeys::begin_recovery(uint32_t number) {
  const std::lock_guard lock(mutex_);
  recovery_ = number;
  shrinks_.clear();
  grow_key_.reset();
}

abi::ncclUniqueId DerivedKeys::make_grow_id() {
  const std::lock_guard lock(mutex_);
  if (grow_key_) {
    fail(abi::ncclInvalidUsage,
         "the uniqueId that an earlier ncclCommGetUniqueId made for this comm has not been used by "
         "ncclCommGrow yet");
  }
  const abi::ncclUniqueId id = make_unique_id(Purpose::Grow);
  grow_key_ = read_unique_id(id, Purpose::Grow, "uniqueId").key;
  return id;
}

void DerivedKeys::check_grow_id(const RendezvousKey& key) const {
  const std::lock_guard lock(mutex_);
  if (grow_key_ && *grow_key_ == key) return;
  fail(abi::ncclInvalidArgument,
       "uniqueId was not made by ncclCommGetUniqueId for this rank of comm, or has been used "
       "already");
}

bool DerivedKeys::growing() const {
  const std::lock_guard lock(mutex_);
  return grow_key_.has_value();
}

void DerivedKeys::use_grow_id() {
  const std::lock_guard lock(mutex_);
  grow_key_.reset();
}

}  // namespace hostnccl

// Ring: the last records of a kind. Recording allocates nothing and throws nothing, since NCCL
// calls the plugin from C.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace pynccl::plugin {

template <class Record, std::size_t kMost>
class Ring {
 public:
  // Adds a record and returns its number, from 1.
  std::uint64_t add(Record record) {
    const std::lock_guard lock(mutex_);
    record.number = ++last_;
    return records_[last_ % kMost] = record, last_;
  }

  // Calls change(record) for the records from the newest on, until it returns true.
  template <class Change>
  void change(Change&& change) {
    const std::lock_guard lock(mutex_);
    for (std::uint64_t number = last_; number > oldest(); --number)
      if (change(records_[number % kMost])) return;
  }

  std::uint64_t copy(std::uint64_t after, Record* out, std::uint64_t most) {
    const std::lock_guard lock(mutex_);
    std::uint64_t copied = 0;
    for (std::uint64_t number = std::max(after, oldest()); number < last_ && copied < most;)
      out[copied++] = records_[++number % kMost];
    return copied;
  }

 private:
  std::uint64_t oldest() const {
    return last_ > kMost ? last_ - kMost : 0;
  }  // the last overwritten

  std::mutex mutex_;
  std::uint64_t last_ = 0;
  std::array<Record, kMost> records_{};
};

}  // namespace pynccl::plugin

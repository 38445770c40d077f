// Ring: the last records of a kind. Recording allocates nothing and throws nothing, since NCCL
// calls the plugin from C.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace pynccl::plugin {

/// Guards everything in this library. A fork takes it, so that a child never finds it locked.
inline std::mutex mutex;

template <class Record, std::size_t kMost>
class Ring {
 public:
  /// Adds a record and returns its number, from 1.
  std::uint64_t add(Record record) {
    const std::lock_guard lock(mutex);
    record.number = ++last_;
    records_[last_ % kMost] = record;
    return last_;
  }

  /// Calls change(record). Returns false if there is no record of this number, or none any more.
  template <class Change>
  bool update(std::uint64_t number, Change&& change) {
    const std::lock_guard lock(mutex);
    if (number > last_ || number <= oldest()) return false;
    change(records_[number % kMost]);
    return true;
  }

  /// Calls change(record) for the records from the newest on, until it returns true.
  template <class Change>
  void find(Change&& change) {
    const std::lock_guard lock(mutex);
    for (std::uint64_t number = last_; number > oldest(); --number)
      if (change(records_[number % kMost])) return;
  }

  std::uint64_t copy(std::uint64_t after, Record* out, std::uint64_t most) {
    const std::lock_guard lock(mutex);
    std::uint64_t copied = 0;
    for (std::uint64_t number = std::max(after, oldest()); number < last_ && copied < most;)
      out[copied++] = records_[++number % kMost];
    return copied;
  }

  /// Returns the number of the newest record, 0 if there is none.
  std::uint64_t last() {
    const std::lock_guard lock(mutex);
    return last_;
  }

 private:
  // The newest that was overwritten; 0 if none was.
  std::uint64_t oldest() const { return last_ > kMost ? last_ - kMost : 0; }

  std::uint64_t last_ = 0;
  std::array<Record, kMost> records_{};
};

}  // namespace pynccl::plugin

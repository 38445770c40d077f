// Ring: the most recent records of a kind. Recording neither allocates nor throws, because NCCL
// calls the plugin from C.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>

namespace pynccl::plugin {

/// Guards all data of this library. A fork locks it, so that no child inherits it locked.
inline std::mutex mutex;

template <class Record, std::size_t kCapacity>
class Ring {
 public:
  /// Adds a record and returns its number, from 1.
  std::uint64_t add(Record record) {
    const std::lock_guard lock(mutex);
    record.number = ++last_;
    records_[last_ % kCapacity] = record;
    return last_;
  }

  /// Calls change(record). Returns false if no record has this number, or it was overwritten.
  template <class Change>
  bool update(std::uint64_t number, Change&& change) {
    const std::lock_guard lock(mutex);
    if (number > last_ || number <= oldest()) return false;
    change(records_[number % kCapacity]);
    return true;
  }

  /// Calls change(record) for each record, newest first, until it returns true.
  template <class Change>
  void find(Change&& change) {
    const std::lock_guard lock(mutex);
    for (std::uint64_t number = last_; number > oldest(); --number)
      if (change(records_[number % kCapacity])) return;
  }

  std::uint64_t copy(std::uint64_t after, Record* out, std::uint64_t size) {
    const std::lock_guard lock(mutex);
    std::uint64_t copied = 0;
    for (std::uint64_t number = std::max(after, oldest()); number < last_ && copied < size;)
      out[copied++] = records_[++number % kCapacity];
    return copied;
  }

  /// Returns the number of the newest record, 0 if there is none.
  std::uint64_t last() {
    const std::lock_guard lock(mutex);
    return last_;
  }

 private:
  // The newest record that was overwritten; 0 if none was.
  std::uint64_t oldest() const { return last_ > kCapacity ? last_ - kCapacity : 0; }

  std::uint64_t last_ = 0;
  std::array<Record, kCapacity> records_{};
};

}  // namespace pynccl::plugin

// TraceLog: a lock-free ring buffer of one thread's uncollected entries. The thread writes, and one
// collector at a time reads.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "watch/trace_entry.h"

namespace pynccl {

class TraceLog {
 public:
  static constexpr std::uint64_t kEntries = 2048;

  explicit TraceLog(std::uint32_t thread) : thread_(thread) {}

  enum class Room { kNone, kHalf, kEnough };

  // Calls fill(entry) on the next slot, which still holds a stale entry. Returns kNone if the log
  // is full and kHalf if it has just become half full.
  template <class Fill>
  [[gnu::always_inline]] Room append(Fill&& fill) {
    const std::uint64_t written = written_.load(std::memory_order_relaxed);
    const std::uint64_t used = written - read_.load(std::memory_order_acquire);
    if (used == kEntries) [[unlikely]]
      return Room::kNone;
    TraceEntry& entry = entries_[written % kEntries];
    fill(entry);
    entry.thread = thread_;
    written_.store(written + 1, std::memory_order_release);
    return used == kEntries / 2 ? Room::kHalf : Room::kEnough;
  }

  template <class F>
  void collect(F&& take) {
    const std::uint64_t written = written_.load(std::memory_order_acquire);
    for (std::uint64_t i = read_.load(std::memory_order_relaxed); i != written; ++i) {
      take(entries_[i % kEntries]);
      read_.store(i + 1, std::memory_order_release);
    }
  }

  void end() { ended_.store(true, std::memory_order_release); }  // the thread has exited
  bool ended() const { return ended_.load(std::memory_order_acquire); }

 private:
  const std::uint32_t thread_;
  std::atomic<bool> ended_ = false;
  alignas(64) std::atomic<std::uint64_t> written_ = 0;
  alignas(64) std::atomic<std::uint64_t> read_ = 0;
  alignas(64) std::array<TraceEntry, kEntries> entries_;
};

}  // namespace pynccl

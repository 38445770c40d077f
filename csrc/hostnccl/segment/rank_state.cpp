#include "hostnccl/segment/rank_state.h"

#include <algorithm>
#include <type_traits>

namespace hostnccl {
namespace {

static_assert(std::is_trivially_copyable_v<ProcessWaits> && sizeof(ProcessWaits) % 8 == 0);
constexpr size_t kWords = sizeof(ProcessWaits) / 8;

uint64_t* words_of(ProcessWaits& waits) { return reinterpret_cast<uint64_t*>(&waits); }

}  // namespace

// A seqlock: the version orders the writes. Each word is atomic because a write may overlap with
// reads.
void WaitBoard::write(std::span<const ProcessWaits> processes) {
  const uint64_t version = version_.load(std::memory_order_relaxed) | 1;
  version_.store(version, std::memory_order_relaxed);
  const size_t count = std::min(processes.size(), kProcesses);
  count_.store(count, std::memory_order_release);
  for (size_t i = 0; i < count; ++i) {
    ProcessWaits copy = processes[i];
    for (size_t word = 0; word < kWords; ++word) {
      std::atomic_ref(words_of(processes_[i])[word])
          .store(words_of(copy)[word], std::memory_order_release);
    }
  }
  version_.store(version + 1, std::memory_order_release);
}

std::vector<ProcessWaits> WaitBoard::read() const {
  const uint64_t version = version_.load(std::memory_order_acquire);
  if (version % 2 != 0) return {};
  std::vector<ProcessWaits> all(
      std::min<uint64_t>(count_.load(std::memory_order_acquire), kProcesses));
  for (size_t i = 0; i < all.size(); ++i) {
    ProcessWaits& from = const_cast<ProcessWaits&>(processes_[i]);  // atomic_ref<const> is C++26
    for (size_t word = 0; word < kWords; ++word) {
      words_of(all[i])[word] =
          std::atomic_ref(words_of(from)[word]).load(std::memory_order_acquire);
    }
    // Another rank wrote it, whose errors must do no harm here.
    all[i].count = std::min<uint64_t>(all[i].count, kPublishedWaits);
    for (PublishedWait& wait : all[i].waits) wait.text[sizeof wait.text - 1] = '\0';
  }
  if (version_.load(std::memory_order_relaxed) != version) return {};
  return all;
}

}  // namespace hostnccl

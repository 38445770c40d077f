// Handles of the C API, which may be null, stale or invalid. A handle points to a slot of a table
// that is never unmapped, so an invalid one is detected without a lock and without accessing freed
// memory. A Ref keeps the object of a slot alive, even after its handle is closed.
#pragma once

#include <sys/mman.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>

#include "hostnccl/base/error.h"
#include "hostnccl/base/thread.h"

namespace hostnccl {

// Additional fields of a slot, for readers without a Ref. They are never unmapped.
template <typename T>
struct SlotView {};

template <typename T>
struct alignas(64) Slot {
  std::atomic<uint32_t> references;  // including that of the open handle
  std::atomic<bool> open;
  T* object;
  [[no_unique_address]] SlotView<T> view;
};

template <typename T>
class Ref {
 public:
  Ref() = default;
  explicit Ref(Slot<T>* adopted) : slot_(adopted) {}
  Ref(const Ref& other) : slot_(other.slot_) {
    if (slot_ != nullptr) slot_->references.fetch_add(1, std::memory_order_relaxed);
  }
  Ref(Ref&& other) noexcept : slot_(std::exchange(other.slot_, nullptr)) {}
  Ref& operator=(Ref other) noexcept {
    std::swap(slot_, other.slot_);
    return *this;
  }
  ~Ref() {
    if (slot_ == nullptr) return;
    T* object = slot_->object;
    if (slot_->references.fetch_sub(1, std::memory_order_acq_rel) == 1) delete object;
  }

  explicit operator bool() const { return slot_ != nullptr; }
  T* operator->() const { return slot_->object; }
  T& operator*() const { return *slot_->object; }
  T* get() const { return slot_ != nullptr ? slot_->object : nullptr; }
  Slot<T>* slot() const { return slot_; }
  friend bool operator==(const Ref& a, const Ref& b) { return a.slot_ == b.slot_; }

 private:
  Slot<T>* slot_ = nullptr;
};

template <typename T>
class HandleTable {
 public:
  // Opens a handle. The table holds one reference until close(). The caller gets another.
  Ref<T> open(std::unique_ptr<T> object) {
    const std::lock_guard lock(mutex_);
    Slot<T>* all = slots();
    for (size_t tried = 0; tried < kSlots; ++tried) {
      Slot<T>& slot = all[next_];
      next_ = (next_ + 1) % kSlots;  // reuses a closed slot as late as possible
      if (slot.references.load(std::memory_order_acquire) != 0) continue;
      slot.object = object.release();
      slot.open.store(true, std::memory_order_relaxed);
      slot.references.store(2, std::memory_order_release);
      return Ref<T>(&slot);
    }
    fail(abi::ncclSystemError, "%zu handles are open, the maximum of hostnccl", kSlots);
  }

  // The object of a handle. Empty if the handle is not open.
  Ref<T> find(const void* handle) const {
    const uintptr_t base = reinterpret_cast<uintptr_t>(slots_.load(std::memory_order_acquire));
    const uintptr_t offset = reinterpret_cast<uintptr_t>(handle) - base;
    if (base == 0 || offset >= kSlots * sizeof(Slot<T>) || offset % sizeof(Slot<T>) != 0) return {};
    Slot<T>* slot = reinterpret_cast<Slot<T>*>(base + offset);
    uint32_t count = slot->references.load(std::memory_order_relaxed);
    do {
      if (count == 0) return {};
    } while (!slot->references.compare_exchange_weak(count, count + 1, std::memory_order_acquire,
                                                     std::memory_order_relaxed));
    Ref<T> found(slot);
    return slot->open.load(std::memory_order_acquire) ? found : Ref<T>();
  }

  // Closes the handle. True for the first caller only.
  bool close(const Ref<T>& object) {
    if (!object.slot()->open.exchange(false, std::memory_order_acq_rel)) return false;
    const Ref<T> table_reference(object.slot());  // dropped here
    return true;
  }

 private:
  static constexpr size_t kSlots = size_t{1} << 18;

  Slot<T>* slots() {
    Slot<T>* all = slots_.load(std::memory_order_relaxed);
    if (all == nullptr) {
      void* memory = mmap(nullptr, kSlots * sizeof(Slot<T>), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) fail_errno("mmap of a handle table");
      all = static_cast<Slot<T>*>(memory);
      slots_.store(all, std::memory_order_release);
    }
    return all;
  }

  std::atomic<Slot<T>*> slots_{nullptr};
  size_t next_ = 0;
  std::mutex mutex_;
};

// The table of a type's handles.
template <typename T>
HandleTable<T>& handles() {
  return immortal<HandleTable<T>>();
}

}  // namespace hostnccl

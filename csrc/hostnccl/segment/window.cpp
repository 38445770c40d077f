#include "hostnccl/segment/window.h"

#include <algorithm>

#include "hostnccl/base/mix.h"

namespace hostnccl {

abi::ncclWindow_t handle_of(const Ref<Window>& window) { return &window.slot()->view.for_kernels; }

Ref<Window> find_window(const void* handle) {
  constexpr uintptr_t kOffset =
      offsetof(Slot<Window>, view) + offsetof(SlotView<Window>, for_kernels);
  return handles<Window>().find(
      reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(handle) - kOffset));
}

void WindowSet::add(const Ref<Window>& window) noexcept {
  windows_.push_back(window);
  identity_ += mix(window->number());
}

char* WindowSet::local_address(int peer, uint64_t address, size_t bytes) const {
  for (const Ref<Window>& window : windows_) {
    if (char* local = window->local_address(peer, address, bytes)) return local;
  }
  return nullptr;
}

std::shared_ptr<WindowSet> Windows::make_larger_set() const {
  return std::make_shared<WindowSet>(open_set()->windows().size() + 1);
}

void Windows::add(const Ref<Window>& window, std::shared_ptr<WindowSet> larger) noexcept {
  const std::lock_guard lock(mutex_);
  for (const Ref<Window>& open : set_->windows()) larger->add(open);
  larger->add(window);
  replace(std::move(larger));
  if (window->symmetric()) any_symmetric_ever_.store(true, std::memory_order_relaxed);
  any_ever_.store(true, std::memory_order_relaxed);
}

bool Windows::remove(const Ref<Window>& window) {
  const std::lock_guard lock(mutex_);
  const std::vector<Ref<Window>>& all = set_->windows();
  if (std::find(all.begin(), all.end(), window) == all.end()) return false;
  auto others = std::make_shared<WindowSet>(all.size());
  for (const Ref<Window>& open : all) {
    if (!(open == window)) others->add(open);
  }
  handles<Window>().close(window);
  replace(std::move(others));
  return true;
}

void Windows::close_all() {
  const std::lock_guard lock(mutex_);
  for (const Ref<Window>& window : set_->windows()) handles<Window>().close(window);
  replace(std::make_shared<const WindowSet>(0));
}

void Windows::abandon_all() {
  if (!serves_kernels_.load(std::memory_order_relaxed)) return;
  const std::lock_guard lock(mutex_);
  for (const Ref<Window>& window : set_->windows()) window->abandon();
}

std::shared_ptr<const WindowSet> Windows::open_set() const {
  const std::lock_guard lock(mutex_);
  return set_;
}

void Windows::replace(std::shared_ptr<const WindowSet> set) {
  set_ = std::move(set);
  any_.store(!set_->windows().empty(), std::memory_order_relaxed);
}

}  // namespace hostnccl

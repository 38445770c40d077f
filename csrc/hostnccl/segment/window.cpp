#include "hostnccl/segment/window.h"

#include <algorithm>

namespace hostnccl {
namespace {

uint64_t mix(uint64_t x) {  // finaliser of SplitMix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

}  // namespace

HandleTable<Window>& windows() {
  static HandleTable<Window>& table = *new HandleTable<Window>;
  return table;
}

WindowSet::WindowSet(std::vector<Ref<Window>> windows) : windows_(std::move(windows)) {
  for (const Ref<Window>& window : windows_) identity_ += mix(window->number());
}

char* WindowSet::local_address(int peer, uint64_t address, size_t bytes) const {
  for (const Ref<Window>& window : windows_) {
    if (char* local = window->local_address(peer, address, bytes)) return local;
  }
  return nullptr;
}

void Windows::add(const Ref<Window>& window) {
  const std::lock_guard lock(mutex_);
  std::vector<Ref<Window>> all = set_->windows();
  all.push_back(window);
  replace(std::move(all));
  if (window->symmetric()) any_symmetric_ever_.store(true, std::memory_order_relaxed);
  any_ever_.store(true, std::memory_order_relaxed);
}

bool Windows::remove(const Ref<Window>& window) {
  const std::lock_guard lock(mutex_);
  std::vector<Ref<Window>> all = set_->windows();
  const auto found = std::find(all.begin(), all.end(), window);
  if (found == all.end()) return false;
  all.erase(found);
  hostnccl::windows().close(window);
  replace(std::move(all));
  return true;
}

void Windows::close_all() {
  const std::lock_guard lock(mutex_);
  for (const Ref<Window>& window : set_->windows()) hostnccl::windows().close(window);
  replace({});
}

std::shared_ptr<const WindowSet> Windows::open_set() const {
  const std::lock_guard lock(mutex_);
  return set_;
}

void Windows::replace(std::vector<Ref<Window>> windows) {
  set_ = std::make_shared<const WindowSet>(std::move(windows));
  any_.store(!set_->windows().empty(), std::memory_order_relaxed);
}

}  // namespace hostnccl

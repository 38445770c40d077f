// The objects that callers know by a handle, which is the address of the object. A handle that is
// not in the table is an error of the caller.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <utility>

namespace cuda_double {

template <class Object>
class Handles {
 public:
  void add(std::shared_ptr<Object> object) {
    const std::lock_guard lock(mutex_);
    const void* handle = object.get();
    objects_[handle] = std::move(object);
  }
  std::shared_ptr<Object> find(const void* handle) {
    const std::lock_guard lock(mutex_);
    const auto found = objects_.find(handle);
    return found == objects_.end() ? nullptr : found->second;
  }
  std::shared_ptr<Object> take(const void* handle) {
    const std::lock_guard lock(mutex_);
    auto taken = objects_.extract(handle);
    return taken ? std::move(taken.mapped()) : nullptr;
  }

 private:
  std::mutex mutex_;
  std::map<const void*, std::shared_ptr<Object>> objects_;
};

}  // namespace cuda_double

#include "hostnccl/base/task.h"

#include <array>
#include <new>

namespace hostnccl {
namespace {

constexpr size_t kGranularity = 128;
constexpr size_t kClasses = 16;  // up to 2 KiB
constexpr size_t kMaxFree = 64;  // frames per size class

struct FreeFrame {
  FreeFrame* next;
};

// The free frames of one thread, by size.
struct Pool {
  struct Class {
    FreeFrame* first = nullptr;
    size_t free = 0;
  };
  std::array<Class, kClasses> classes;

  ~Pool() {
    for (Class& size_class : classes) {
      while (FreeFrame* frame = size_class.first) {
        size_class.first = frame->next;
        ::operator delete(frame);
      }
    }
  }
};

thread_local Pool pool;

size_t class_of(size_t bytes) { return (bytes + kGranularity - 1) / kGranularity - 1; }

}  // namespace

void* allocate_frame(size_t bytes) {
  const size_t index = class_of(bytes);
  if (index >= kClasses) return ::operator new(bytes);
  Pool::Class& size_class = pool.classes[index];
  if (size_class.first == nullptr) return ::operator new((index + 1) * kGranularity);
  FreeFrame* frame = size_class.first;
  size_class.first = frame->next;
  --size_class.free;
  return frame;
}

void free_frame(void* memory, size_t bytes) noexcept {
  const size_t index = class_of(bytes);
  if (index >= kClasses || pool.classes[index].free == kMaxFree) {
    ::operator delete(memory);
    return;
  }
  Pool::Class& size_class = pool.classes[index];
  size_class.first = new (memory) FreeFrame{size_class.first};
  ++size_class.free;
}

}  // namespace hostnccl

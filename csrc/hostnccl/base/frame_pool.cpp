#include "hostnccl/base/frame_pool.h"

#include <array>
#include <new>

namespace hostnccl {
namespace {

constexpr size_t kStep = 128;
constexpr size_t kClasses = 16;  // up to 2 KiB
constexpr size_t kMostKept = 64;

struct FreeFrame {
  FreeFrame* next;
};

struct Pool {
  struct Class {
    FreeFrame* first = nullptr;
    size_t kept = 0;
  };
  std::array<Class, kClasses> classes;

  ~Pool() {
    for (Class& of_size : classes) {
      while (FreeFrame* frame = of_size.first) {
        of_size.first = frame->next;
        ::operator delete(frame);
      }
    }
  }
};

thread_local Pool pool;

size_t class_of(size_t bytes) { return (bytes + kStep - 1) / kStep - 1; }

}  // namespace

void* allocate_frame(size_t bytes) {
  const size_t index = class_of(bytes);
  if (index >= kClasses) return ::operator new(bytes);
  Pool::Class& of_size = pool.classes[index];
  if (of_size.first == nullptr) return ::operator new((index + 1) * kStep);
  FreeFrame* frame = of_size.first;
  of_size.first = frame->next;
  --of_size.kept;
  return frame;
}

void free_frame(void* memory, size_t bytes) noexcept {
  const size_t index = class_of(bytes);
  if (index >= kClasses || pool.classes[index].kept == kMostKept) {
    ::operator delete(memory);
    return;
  }
  Pool::Class& of_size = pool.classes[index];
  of_size.first = new (memory) FreeFrame{of_size.first};
  ++of_size.kept;
}

}  // namespace hostnccl

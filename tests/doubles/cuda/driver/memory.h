// Device memory: ranges of host memory that belong to a device, and the operations in flight that
// use them. Each free begins a new generation of a range: in call order at the call, in stream
// order when the stream reaches the free. An operation that is enqueued in one generation and ends
// in another is a violation.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "types.h"

namespace cuda_double {

inline constexpr unsigned char kPoison = 0xDB;  // as float32: -1.2e17; as int32: negative

struct Range {
  char* base = nullptr;
  size_t bytes = 0;
  int device = 0;
  const char* origin = "";              // the function that allocates such memory
  std::function<void()> release;        // returns the memory to its source
  std::atomic<uint64_t> generation{0};  // in call order
  std::atomic<uint64_t> reached{0};     // in stream order
  std::atomic<int> in_flight{0};
  std::atomic<bool> freed{false};
  std::atomic<bool> released{false};
};
using RangeRef = std::shared_ptr<Range>;

RangeRef add_range(void* base, size_t bytes, int device, const char* origin,
                   std::function<void()> release);
RangeRef find_range(const void* address);  // null if it is not device memory
RangeRef take_range(const void* base);  // removes it from the table; null if no range begins there

void poison(Range& range);
// Frees a range removed from the table: immediately, or, with a violation, when its last use ends.
void free_range(const RangeRef& range, const char* function);

RangeRef allocate(size_t bytes, int device, const char* origin);

// The memory used by one enqueued operation.
class MemoryUse {
 public:
  MemoryUse(std::string operation, int device);
  // Null addresses and lengths of 0 are ignored.
  void add(const void* address, size_t bytes);
  // Violations of add() are reported by issue() instead: an operation may be simulated.
  void defer() { deferred_ = true; }
  void issue();
  void end();     // reports changes since it was enqueued
  void cancel();  // it was never enqueued

 private:
  struct Part {
    RangeRef range;
    uint64_t generation;
  };
  const std::string operation_;
  const int device_;
  bool deferred_ = false;
  std::vector<std::string> violations_;
  std::vector<Part> parts_;

  void report(const std::string& text);
};

void report_violation(const std::string& text);
size_t violation_count();
std::string violation(size_t index);
void clear_violations();

}  // namespace cuda_double

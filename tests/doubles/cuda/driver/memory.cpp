#include "driver/memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace cuda_double {
namespace {

struct Table {
  std::mutex mutex;
  std::map<uintptr_t, RangeRef> ranges;
};

Table& table() {
  static Table& instance = *new Table;
  return instance;
}

std::mutex violations_mutex;

std::vector<std::string>& violations() {
  static auto& texts = *new std::vector<std::string>;
  return texts;
}

void release(const RangeRef& range) {
  if (range->released.exchange(true)) return;
  poison(*range);
  if (range->release) range->release();
}

std::string describe(const Range& range) {
  char text[160];
  std::snprintf(text, sizeof text, "%zu bytes at %p of device %d (%s)", range.bytes,
                static_cast<void*>(range.base), range.device, range.origin);
  return text;
}

}  // namespace

RangeRef add_range(void* base, size_t bytes, int device, const char* origin,
                   std::function<void()> release) {
  auto range = std::make_shared<Range>();
  range->base = static_cast<char*>(base);
  range->bytes = bytes;
  range->device = device;
  range->origin = origin;
  range->release = std::move(release);
  const std::lock_guard lock(table().mutex);
  table().ranges[reinterpret_cast<uintptr_t>(base)] = range;
  return range;
}

RangeRef find_range(const void* address) {
  const auto place = reinterpret_cast<uintptr_t>(address);
  const std::lock_guard lock(table().mutex);
  auto next = table().ranges.upper_bound(place);
  if (next == table().ranges.begin()) return nullptr;
  const RangeRef& range = std::prev(next)->second;
  return place - reinterpret_cast<uintptr_t>(range->base) < range->bytes ? range : nullptr;
}

RangeRef take_range(const void* base) {
  const std::lock_guard lock(table().mutex);
  const auto found = table().ranges.find(reinterpret_cast<uintptr_t>(base));
  if (found == table().ranges.end()) return nullptr;
  RangeRef range = std::move(found->second);
  table().ranges.erase(found);
  return range;
}

void poison(Range& range) { std::memset(range.base, kPoison, range.bytes); }

void free_range(const RangeRef& range, const char* function) {
  range->generation.fetch_add(1);
  range->reached.fetch_add(1);
  if (range->in_flight.load() == 0) return release(range);
  report_violation(std::string(function) + " of " + describe(*range) +
                   " that an operation in flight uses");
  poison(*range);
  // The last use releases it, so the process does not crash.
  range->in_flight.fetch_add(1);
  range->freed.store(true);
  if (range->in_flight.fetch_sub(1) == 1) release(range);
}

RangeRef allocate(size_t bytes, int device, const char* origin) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  if (bytes > (size_t{1} << 46)) return nullptr;
  const size_t whole = (bytes + page - 1) / page * page;
  void* base = mmap(nullptr, whole, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return nullptr;
  return add_range(base, bytes, device, origin, [base, whole] { munmap(base, whole); });
}

MemoryUse::MemoryUse(std::string operation, int device)
    : operation_(std::move(operation)), device_(device) {}

void MemoryUse::add(const void* address, size_t bytes) {
  if (address == nullptr || bytes == 0) return;
  const RangeRef range = find_range(address);
  char where[64];
  std::snprintf(where, sizeof where, "%zu bytes at %p", bytes, address);
  if (!range) return report(operation_ + " takes " + where + ", not device memory");
  if (range->device != device_) {
    report(operation_ + " on device " + std::to_string(device_) + " takes " + where +
           " of device " + std::to_string(range->device));
  }
  const auto offset = static_cast<size_t>(static_cast<const char*>(address) - range->base);
  if (bytes > range->bytes - offset)
    report(operation_ + " takes " + where + ", past the end of " + describe(*range));
  range->in_flight.fetch_add(1);
  parts_.push_back({range, range->generation.load()});
}

void MemoryUse::report(const std::string& text) {
  if (!deferred_) return report_violation(text);
  violations_.push_back(text);
}

void MemoryUse::issue() {
  for (const std::string& text : violations_) report_violation(text);
  violations_.clear();
}

void MemoryUse::end() {
  for (const Part& part : parts_) {
    const uint64_t reached = part.range->reached.load();
    if (reached > part.generation)
      report_violation(operation_ + " used " + describe(*part.range) +
                       " after it was freed: nothing ordered the free after the operation");
    if (reached < part.generation)
      report_violation(operation_ + " used " + describe(*part.range) +
                       " before it was free: nothing ordered the operation after the work of the "
                       "stream that it was allocated for");
  }
  cancel();
}

void MemoryUse::cancel() {
  for (const Part& part : parts_)
    if (part.range->in_flight.fetch_sub(1) == 1 && part.range->freed.load()) release(part.range);
  parts_.clear();
}

// Also to the file CUDA_DOUBLE_REPORT, because the test may run in another process.
void report_violation(const std::string& text) {
  const std::lock_guard lock(violations_mutex);
  violations().push_back(text);
  const char* path = std::getenv("CUDA_DOUBLE_REPORT");
  if (path == nullptr || *path == '\0') return;
  if (std::FILE* file = std::fopen(path, "a")) {
    std::fprintf(file, "[%d] %s\n", getpid(), text.c_str());
    std::fclose(file);
  }
}

size_t violation_count() {
  const std::lock_guard lock(violations_mutex);
  return violations().size();
}

std::string violation(size_t index) {
  const std::lock_guard lock(violations_mutex);
  return index < violations().size() ? violations()[index] : std::string();
}

void clear_violations() {
  const std::lock_guard lock(violations_mutex);
  violations().clear();
}

}  // namespace cuda_double

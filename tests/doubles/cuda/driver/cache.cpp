#include "driver/cache.h"

#include <algorithm>
#include <list>
#include <map>
#include <mutex>

#include "driver/memory.h"
#include "driver/stream.h"

namespace cuda_double {
namespace {

constexpr size_t kGranule = 512;
constexpr size_t kMostWaste = 2;  // a block may be this many times as large as asked for

struct Block {
  RangeRef range;
  StreamRef stream;
  std::vector<StreamRef> users;  // by cache_record_stream
  std::vector<CUevent> waited;   // the engine's; the users' work when it was freed
  bool captured = false;         // allocated in a capture, so its graph keeps using it
};

struct Cache {
  std::mutex mutex;
  std::map<void*, Block> used;
  std::list<Block> waiting;                        // freed, but users' work may be unfinished
  std::map<const Stream*, std::list<Block>> free;  // most recently freed first
};

Cache& cache() {
  static Cache& instance = *new Cache;
  return instance;
}

// Calls function(range) on a stream, in the stream's own context.
void enqueue(Stream& stream, void (*function)(Range&), const RangeRef& range) {
  stream.before_work();
  launch(stream, [=] { function(*range); });
  stream.after_work();
}

void poison_freed(Range& range) {
  range.reached.fetch_add(1);
  poison(range);
}

void check_poison(Range& range) {
  const char* const begin = range.base;
  const char* const end = begin + range.bytes;
  const char* const bad = std::find_if(
      begin, end, [](char byte) { return static_cast<unsigned char>(byte) != kPoison; });
  if (bad == end) return;
  report_violation("memory of device " + std::to_string(range.device) +
                   " was written after it was freed, at byte " + std::to_string(bad - begin) +
                   " of " + std::to_string(range.bytes) +
                   ": a stream that the allocator does not know of used it");
}

// Requires the lock.
void make_free(Block block) {
  Stream& stream = *block.stream;
  if (block.captured || capturing(stream)) return;
  block.range->generation.fetch_add(1);
  enqueue(stream, poison_freed, block.range);
  block.users.clear();
  cache().free[&stream].push_front(std::move(block));
}

void collect_waiting() {
  auto& waiting = cache().waiting;
  for (auto next = waiting.begin(); next != waiting.end();) {
    auto& events = next->waited;
    std::erase_if(events, [](CUevent event) {
      if (!is_reached(event)) return false;
      engine().EventDestroy(event);
      return true;
    });
    if (!events.empty()) {
      ++next;
      continue;
    }
    Block block = std::move(*next);
    next = waiting.erase(next);
    make_free(std::move(block));
  }
}

}  // namespace

void* cache_allocate(int device, CUstream handle, size_t bytes) {
  const auto [stream, result] = find_stream(handle);
  if (!stream || stream->context().device() != device) return nullptr;
  const size_t rounded = std::max((bytes + kGranule - 1) / kGranule, size_t{1}) * kGranule;
  const std::lock_guard lock(cache().mutex);
  collect_waiting();
  auto& free = cache().free[stream.get()];
  const auto fits = [&](const Block& block) {
    return block.range->bytes >= rounded && block.range->bytes <= kMostWaste * rounded;
  };
  const auto found = capturing(*stream) ? free.end() : std::find_if(free.begin(), free.end(), fits);
  if (found != free.end()) {
    Block block = std::move(*found);
    free.erase(found);
    enqueue(*stream, check_poison, block.range);
    void* const base = block.range->base;
    cache().used[base] = std::move(block);
    return base;
  }
  RangeRef range = allocate(rounded, device, "caching allocator");
  if (!range) return nullptr;
  range->bytes = rounded;
  poison(*range);
  void* const base = range->base;
  cache().used[base] = {std::move(range), stream, {}, {}, capturing(*stream)};
  return base;
}

void cache_free(void* base) {
  const std::lock_guard lock(cache().mutex);
  const auto found = cache().used.find(base);
  if (found == cache().used.end()) return;
  Block block = std::move(found->second);
  cache().used.erase(found);
  if (block.users.empty()) return make_free(std::move(block));
  for (const StreamRef& user : block.users) {
    CUevent event = nullptr;
    engine().EventCreate(&event, CU_EVENT_DISABLE_TIMING);
    engine().EventRecord(event, user->queue());
    block.waited.push_back(event);
  }
  cache().waiting.push_back(std::move(block));
}

void cache_record_stream(void* base, CUstream handle) {
  const auto [stream, result] = find_stream(handle);
  const std::lock_guard lock(cache().mutex);
  const auto found = cache().used.find(base);
  if (!stream || found == cache().used.end() || stream == found->second.stream) return;
  found->second.users.push_back(stream);
}

}  // namespace cuda_double

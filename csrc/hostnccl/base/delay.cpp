#include "hostnccl/base/delay.h"

#include <chrono>
#include <cmath>
#include <mutex>
#include <thread>

#include "hostnccl/base/mix.h"
#include "hostnccl/base/params.h"

namespace hostnccl {
namespace {

constexpr double kShortest = 1e-6;  // seconds
constexpr double kLongest = 3e-3;

// SplitMix64 (Steele, Lea and Flood), which is good from any seed.
uint64_t next(uint64_t& state) { return mix(state += 0x9e3779b97f4a7c15); }

// The random generator of one thread.
struct Generator {
  uint64_t seed = 0;  // from which state was initialized
  uint64_t state = 0;
  uint32_t number = 0;  // of the stream or thread
  bool is_stream = false;
};

thread_local Generator generator;

}  // namespace

void Delay::read_seed() {
  const uint64_t seed = param_number(ParamId::DelaySeed);
  if (seed_.load(std::memory_order_relaxed) == seed) return;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  if (seed_.exchange(seed) == seed) return;
  streams_ = 0;
  threads_ = 0;
}

void Delay::bind_to_stream(uint32_t number) {
  generator.number = number;
  generator.is_stream = true;
}

void Delay::pause_at_random() {
  const uint64_t seed = seed_.load(std::memory_order_relaxed);
  if (generator.seed != seed) {
    generator.seed = seed;
    if (!generator.is_stream) generator.number = threads_.fetch_add(1, std::memory_order_relaxed);
    generator.state = seed;
    for (const uint64_t part : {uint64_t{generator.number}, uint64_t{generator.is_stream},
                                static_cast<uint64_t>(rank_.load(std::memory_order_relaxed))}) {
      generator.state = next(generator.state) + part;
    }
  }
  if (next(generator.state) % 2 == 0) return;  // half of all work is not delayed
  const double fraction = static_cast<double>(next(generator.state) >> 11) * 0x1p-53;
  const double seconds = kShortest * std::pow(kLongest / kShortest, fraction);
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

}  // namespace hostnccl

// Delay: random pauses before work, a test mode enabled by HOSTNCCL_DELAY_SEED. They make a program
// with a missing wait read wrong bytes. The pauses are a function of the seed, the number of the
// stream or thread, and the rank that this process initialized last.
#pragma once

#include <atomic>
#include <cstdint>

namespace hostnccl {

class Delay {
 public:
  // Reads the environment: 0, empty or absent is off. Each new stream and communicator calls it, so
  // a process can use several seeds. A new seed restarts the numbering of threads.
  static void read_seed();
  static void set_rank(int rank) { rank_.store(rank, std::memory_order_relaxed); }

  static uint32_t next_stream_number() { return streams_.fetch_add(1, std::memory_order_relaxed); }
  static void bind_to_stream(uint32_t number);  // for the thread that runs the stream's queue

  static void pause() {
    if (seed_.load(std::memory_order_relaxed) != 0) [[unlikely]]
      pause_at_random();
  }

 private:
  static void pause_at_random();

  inline static std::atomic<uint64_t> seed_{0};
  inline static std::atomic<uint32_t> streams_{0};
  inline static std::atomic<uint32_t> threads_{0};
  inline static std::atomic<int> rank_{0};
};

}  // namespace hostnccl

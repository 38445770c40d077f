// A test mode, HOSTNCCL_DELAY_SEED: every thread that runs work pauses at random before each piece
// of it, so that whoever forgot to wait for something finds the wrong bytes. The pauses are drawn
// from the seed, the number of the stream or thread, and the rank that this process became last.
#pragma once

#include <atomic>
#include <cstdint>

namespace hostnccl {

class Delay {
 public:
  // Reads the environment: 0, empty or absent is off. Called when a stream or a communicator is
  // made, so that a process can go through many seeds; a new seed counts threads from the start.
  static void read_seed();
  static void set_rank(int rank) { rank_.store(rank, std::memory_order_relaxed); }

  static uint32_t next_stream_number() { return streams_.fetch_add(1, std::memory_order_relaxed); }
  static void bind_to_stream(uint32_t number);  // this thread runs its queue

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

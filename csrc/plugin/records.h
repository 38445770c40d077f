// The plugin's records, and the functions by which pynccl/_internal/plugin.py reads them. It
// declares the same structs. The records are rings: the oldest are overwritten. All functions are
// thread-safe.
#pragma once

#include <cstdint>

namespace pynccl::plugin {

// A collective for which NCCL called the tuner's getCollInfo.
struct TunerChoice {
  static constexpr int kMaxAlgorithms = 8, kMaxProtocols = 4;

  std::uint64_t number;   // from 1
  std::uint64_t context;  // the number of its communicator
  std::uint64_t nbytes;
  std::uint64_t chunk;  // bytes; 0 if unknown
  std::int64_t thread;  // the kernel's id of the calling thread
  std::int32_t function;
  std::int32_t operations;  // of the group
  std::int32_t registered;  // -1 if unknown
  std::int32_t algorithms;  // the shape of NCCL's table; 0 without one
  std::int32_t protocols;
  std::int32_t algorithm;  // the choice; -1 if unknown
  std::int32_t protocol;
  std::int32_t channels;  // 0 if unknown
  std::int32_t rule;  // the rule that forced the choice, from 1; 0: none; -1: NCCL cannot apply it
  float costs[kMaxAlgorithms][kMaxProtocols];  // NCCL's, in microseconds; below 0: unusable
};

// Forces a choice for a function and a range of bytes. The first rule that matches applies.
struct TunerRule {
  std::uint64_t min_bytes;
  std::uint64_t max_bytes;  // inclusive
  std::int32_t function;
  std::int32_t nranks;  // 0: any
  std::int32_t algorithm;
  std::int32_t protocol;
  std::int32_t channels;  // 0: NCCL's choice
};

// What a proxy waits for, and the index of the sum in ProfilerRecord.
enum ProxyWait { kSendGpu, kSendPeer, kSendNetwork, kReceive, kReceiveFlush, kReceiveGpu, kWaits };

// A collective or message that NCCL issued while the profiler was on. Its kernel and proxies add to
// it later. Times are in nanoseconds.
struct ProfilerRecord {
  std::uint64_t number;    // from 1
  std::int64_t time;       // of CLOCK_MONOTONIC
  std::uint64_t sendbuff;  // the buffer of a message
  std::uint64_t recvbuff;
  std::uint64_t launch;    // number of the kernel launch; 0 if unknown
  std::uint64_t started;   // a bit for each channel of the kernel that has started
  std::uint64_t began;     // the first start of a channel that has ended, on the kernel's clock
  std::uint64_t ended;     // the last end
  std::uint64_t shortest;  // of a channel
  std::uint64_t longest;
  std::uint64_t waits[kWaits];  // sums over all steps of the proxies
  std::int32_t rank;
  std::int32_t peer;      // of a message; -1 for a collective
  std::int32_t channels;  // 0 if unknown
  std::int32_t stopped;   // channels that have ended
  std::int32_t proxies;   // operations of proxies
  std::int32_t steps;
  std::int32_t open;  // channels and steps that have not ended
  char function[16];  // as NCCL names it: "AllReduce"
  char algorithm[20];
  char protocol[16];
};

}  // namespace pynccl::plugin

extern "C" {

// Copy up to `size` records after a number, oldest first, and return how many were copied.
std::uint64_t pynccl_plugin_choices(std::uint64_t after, pynccl::plugin::TunerChoice* out,
                                    std::uint64_t size);
// Replaces the rules. Returns how many were stored: fewer than count if there are too many.
std::uint64_t pynccl_plugin_rules(const pynccl::plugin::TunerRule* rules, std::uint64_t count);

// Requests these events (abi::ProfilerEvent) from NCCL; 0 turns the profiler off. Returns the
// number of the newest record.
std::uint64_t pynccl_plugin_profile(int events);
std::uint64_t pynccl_plugin_events(std::uint64_t after, pynccl::plugin::ProfilerRecord* out,
                                   std::uint64_t size);
// The interface version with which NCCL last initialized the profiler; 0 if it has not.
int pynccl_plugin_profiler_version();
}

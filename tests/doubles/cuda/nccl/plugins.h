// The plugins of NCCL_TUNER_PLUGIN and NCCL_PROFILER_PLUGIN, loaded and called as NCCL does
// (plugin/tuner.cc, ncclGetAlgoInfo in enqueue.cc, plugin/profiler.cc). The cost table is
// synthetic.
#pragma once

#include <cstdint>
#include <mutex>

#include "types.h"

namespace cuda_double {

// An operation as the plugins see it.
struct PluginOperation {
  int function = -1;      // NCCL's number of a collective; -1: the tuner is not asked
  const char* name = "";  // NCCL's name; empty: the profiler is not told
  size_t nbytes = 0;      // of the larger buffer
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  int peer = -1;  // or root
};

// The plugins of a communicator.
class Plugins {
 public:
  void open(ncclComm_t comm, int nranks, int rank, int device);
  void close();
  // Chooses an algorithm and protocol, and issues the operation unless it is simulated.
  void choose(const PluginOperation& operation, bool simulated);

 private:
  void profile(const PluginOperation& operation, int algorithm, int protocol, int channels);

  std::mutex mutex_;
  ncclComm_t comm_ = nullptr;
  int nranks_ = 0;
  int rank_ = 0;
  void* tuner_ = nullptr;     // its context
  void* profiler_ = nullptr;  // its context
  bool tuned_ = false;
  bool profiled_ = false;
};

}  // namespace cuda_double

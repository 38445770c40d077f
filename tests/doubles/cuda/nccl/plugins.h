// The plugins of NCCL_TUNER_PLUGIN and NCCL_PROFILER_PLUGIN, loaded and called as NCCL does
// (plugin/tuner.cc, ncclGetAlgoInfo and hostStreamPlanTask in enqueue.cc, plugin/profiler.cc,
// transport/net.cc, transport/profiler.cc). The cost table is synthetic.
#pragma once

#include <cstdint>
#include <mutex>
#include <vector>

#include "types.h"

namespace cuda_double {

// An operation as the plugins see it.
struct PluginOperation {
  int function = -1;      // NCCL's number of a collective; -1: not passed to the tuner
  const char* name = "";  // NCCL's name; empty: not passed to the profiler
  size_t nbytes = 0;      // of the larger buffer
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  int peer = -1;  // or root
};

// An operation as the profiler sees it, from its call to the end of its kernel.
struct PluginTask {
  PluginOperation operation;
  int mask = 0;  // of the events, when the operation was called
  int algorithm = 0;
  int protocol = 0;
  int channels = 0;
  void* handle = nullptr;
  std::vector<void*> kernel{};  // the handles of its channels
};

// The plugins of a communicator.
class Plugins {
 public:
  void open(ncclComm_t comm, int nranks, int rank, int device);
  void close();
  static int mask();
  // Chooses an algorithm, a protocol and channels.
  void choose(PluginTask& task, bool simulated);
  // Reports the launch, begin and end of a kernel to the profiler. The kernel uses the network if
  // NCCL_DOUBLE_NET_STEPS is set: the number of transfers per channel and direction, each of which
  // takes NCCL_DOUBLE_NET_SECONDS.
  void launch(const std::vector<PluginTask*>& tasks);
  void begin(PluginTask& task);
  void end(PluginTask& task);

 private:
  template <class Call>
  void profile(Call&& call);

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

// The C ABI of NCCL's tuner and profiler plugins: the struct that a plugin exports for each version
// of an interface (nccl_plugin_versions.inc). tests/abi/plugin_checks.py has the layouts.
#pragma once

#include <cstddef>
#include <cstdint>

#include "nccl_types.h"

namespace pynccl::abi {

inline constexpr float kCostIgnored = -1.0f;  // NCCL cannot use this algorithm and protocol
inline constexpr int kNoChoice = -1;

enum PluginFunction : int {
  kPluginBroadcast = 0,
  kPluginReduce = 1,
  kPluginAllGather = 2,
  kPluginReduceScatter = 3,
  kPluginAllReduce = 4,
};

using PluginLogger = void (*)(unsigned level, unsigned long subsystems, const char* file, int line,
                              const char* format, ...);

// A tuner. NCCL calls init for each communicator, getCollInfo for each collective, and then destroy
// or finalize. The cost table of getCollInfo is float[algorithms][protocols], in microseconds.
// Whatever costs least afterwards is what NCCL uses, with channels, unless they stay 0.
template <class Init, class GetCollInfo>
struct Tuner {
  const char* name;
  Init init;
  GetCollInfo getCollInfo;
  ncclResult_t (*finalize)(void* context);  // destroy before version 5
};
using TunerInitV2 = ncclResult_t (*)(std::size_t nranks, std::size_t nodes, PluginLogger,
                                     void** context);
using TunerInitV5 = ncclResult_t (*)(void** context, std::uint64_t comm_id, std::size_t nranks,
                                     std::size_t nodes, PluginLogger, void* nvlink_domains,
                                     void* constants);
using TunerInfoV2 = ncclResult_t (*)(void* context, int function, std::size_t nbytes, int collnet,
                                     int nvls, int operations, int* algorithm, int* protocol,
                                     int* channels);
using TunerInfoV3 = ncclResult_t (*)(void* context, int function, std::size_t nbytes,
                                     int operations, float** costs, int algorithms, int protocols,
                                     int* channels);
using TunerInfoV4 = ncclResult_t (*)(void* context, int function, std::size_t nbytes,
                                     int operations, float** costs, int algorithms, int protocols,
                                     int registered, int* channels);
using TunerV2 = Tuner<TunerInitV2, TunerInfoV2>;
using TunerV3 = Tuner<TunerInitV2, TunerInfoV3>;
using TunerV4 = Tuner<TunerInitV2, TunerInfoV4>;
using TunerV5 = Tuner<TunerInitV5, TunerInfoV4>;

struct TunerV6 {
  const char* name;
  TunerInitV5 init;
  TunerInfoV4 getCollInfo;
  ncclResult_t (*finalize)(void* context);
  // Called when NCCL issues the collective, which it does not in a simulation.
  ncclResult_t (*getChunkSize)(void* context, int function, std::size_t nbytes, int algorithm,
                               int protocol, int channels, std::size_t* chunk);
};

// A profiler. init receives the address of NCCL's event mask, which the plugin may change at any
// time. NCCL reports the kinds of events in the mask, and their parents. It stores the mask with an
// operation when it is called. A captured operation keeps it.
enum ProfilerEvent : int {
  kProfileGroup = 1 << 0,  // a kernel launch, with the operations in it
  kProfileColl = 1 << 1,
  kProfileP2p = 1 << 2,
  kProfileProxyOp = 1 << 3,        // a channel's transfers with a peer over the network
  kProfileProxyStep = 1 << 4,      // one of these transfers
  kProfileKernelChannel = 1 << 6,  // from version 3 on
  kProfileGroupApi = 1 << 8,       // from version 5 on
  kProfileCollApi = 1 << 9,
  kProfileP2pApi = 1 << 10,
};

// The states of a proxy step are what it waits for until its next state or its end. The end of a
// kernel's channel is a state as well.
enum ProfilerState : int {
  kStepSendGpuWait = 8,        // for the kernel to fill the buffer
  kStepSendWait = 9,           // for the network
  kStepReceiveWait = 10,       // for data of the peer
  kStepReceiveFlushWait = 11,  // for data to be visible to the GPU
  kStepReceiveGpuWait = 12,    // for the kernel to empty the buffer
  kStepSendPeerWait = 20,      // for the peer to offer a buffer, from version 4 on
  kKernelChannelStop = 22,     // from version 4 on
};

// The parts of events, whose order differs between versions.
struct ProfiledComm {
  const char* name;
  std::uint64_t id;
};
// Version 1 has NCCL's numbers in place of names.
struct ProfiledCallV1 {
  std::uint64_t sequence;
  std::uint8_t function;
  const void* sendbuff;
  void* recvbuff;
  std::size_t count;
  int root;
  std::uint8_t dtype;
  std::uint32_t op;
};
struct ProfiledCall {
  std::uint64_t sequence;
  const char* function;
  const void* sendbuff;
  void* recvbuff;
  std::size_t count;
  int root;
  const char* dtype;
};
struct ProfiledChoiceV1 {
  std::uint8_t channels;
  std::uint8_t warps;
  std::uint8_t algorithm;
  std::uint8_t protocol;
  int collnet;
  int nvls;
};
struct ProfiledChoice {
  std::uint8_t channels;
  std::uint8_t warps;
  const char* algorithm;
  const char* protocol;
};

struct ProfiledCollV1 {
  ProfiledComm comm;
  ProfiledCallV1 call;
  std::size_t traffic;
  ProfiledChoiceV1 choice;
};
struct ProfiledCollV2 {
  ProfiledComm comm;
  ProfiledCall call;
  std::size_t traffic;
  ProfiledChoice choice;
};
struct ProfiledCollV3 {
  ProfiledComm comm;
  ProfiledCall call;
  ProfiledChoice choice;
};
struct ProfiledCollV4 {
  ProfiledCall call;
  ProfiledChoice choice;
};
struct ProfiledCollV5 {
  ProfiledCall call;
  ProfiledChoice choice;
  void* group;  // the parent is a call of the API
};
template <class Name>
struct ProfiledP2p {
  ProfiledComm comm;
  Name function;
  void* buffer;
  Name dtype;
  std::size_t count;
  int peer;
};
using ProfiledP2pV1 = ProfiledP2p<std::uint8_t>;
using ProfiledP2pV2 = ProfiledP2p<const char*>;
struct ProfiledP2pV4 {
  const char* function;
  void* buffer;
  const char* dtype;
  std::size_t count;
  int peer;
  std::uint8_t channels;
};
struct ProfiledP2pV5 {
  const char* function;
  void* buffer;
  const char* dtype;
  std::size_t count;
  int peer;
  std::uint8_t channels;
  void* group;
};
struct ProfiledProxy {
  int pid;  // of the process that issued the operation, which the handle of the parent belongs to
  std::uint8_t channel;
  int peer;
  int steps;
  int chunk;
  int sends;
};
struct ProfiledChannelV3 {
  std::uint8_t channel;
};
struct ProfiledChannelV4 {
  std::uint8_t channel;
  std::uint64_t time;  // nanoseconds of the GPU's clock
};

template <class Type, class Coll, class P2p, class Channel>
struct ProfilerEventOf {
  Type type;
  void* parent;
  int rank;
  union {
    Coll coll;
    P2p p2p;
    ProfiledProxy proxy;
    Channel kernel;  // not in versions 1 and 2
  };
};
using ProfilerEventV1 =
    ProfilerEventOf<std::uint8_t, ProfiledCollV1, ProfiledP2pV1, ProfiledChannelV3>;
using ProfilerEventV2 =
    ProfilerEventOf<std::uint8_t, ProfiledCollV2, ProfiledP2pV2, ProfiledChannelV3>;
using ProfilerEventV3 =
    ProfilerEventOf<std::uint8_t, ProfiledCollV3, ProfiledP2pV2, ProfiledChannelV3>;
using ProfilerEventV4 =
    ProfilerEventOf<std::uint8_t, ProfiledCollV4, ProfiledP2pV4, ProfiledChannelV4>;
// Of versions 5 and 6.
using ProfilerEventV5 =
    ProfilerEventOf<std::uint64_t, ProfiledCollV5, ProfiledP2pV5, ProfiledChannelV4>;

template <class Init, class Event>
struct Profiler {
  const char* name;
  Init init;
  ncclResult_t (*startEvent)(void* context, void** handle, Event* event);
  ncclResult_t (*stopEvent)(void* handle);
  // The arguments of kKernelChannelStop are the time. Others are not used here, and may be null.
  ncclResult_t (*recordEventState)(void* handle, int state, void* arguments);
  ncclResult_t (*finalize)(void* context);
};
using ProfilerInitV1 = ncclResult_t (*)(void** context, int* mask);
using ProfilerInitV4 = ncclResult_t (*)(void** context, int* mask, const char* name,
                                        std::uint64_t comm_id, int nodes, int nranks, int rank,
                                        PluginLogger);
using ProfilerInitV5 = ncclResult_t (*)(void** context, std::uint64_t comm_id, int* mask,
                                        const char* name, int nodes, int nranks, int rank,
                                        PluginLogger);
using ProfilerV1 = Profiler<ProfilerInitV1, ProfilerEventV1>;
using ProfilerV2 = Profiler<ProfilerInitV1, ProfilerEventV2>;
using ProfilerV3 = Profiler<ProfilerInitV1, ProfilerEventV3>;
using ProfilerV4 = Profiler<ProfilerInitV4, ProfilerEventV4>;
using ProfilerV5 = Profiler<ProfilerInitV5, ProfilerEventV5>;
using ProfilerV6 = ProfilerV5;

}  // namespace pynccl::abi

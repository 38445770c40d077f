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
struct TunerV2 {
  const char* name;
  ncclResult_t (*init)(std::size_t nranks, std::size_t nodes, PluginLogger, void** context);
  ncclResult_t (*getCollInfo)(void* context, int function, std::size_t nbytes, int collnet,
                              int nvls, int operations, int* algorithm, int* protocol,
                              int* channels);
  ncclResult_t (*destroy)(void* context);
};

struct TunerV3 {
  const char* name;
  ncclResult_t (*init)(std::size_t nranks, std::size_t nodes, PluginLogger, void** context);
  ncclResult_t (*getCollInfo)(void* context, int function, std::size_t nbytes, int operations,
                              float** costs, int algorithms, int protocols, int* channels);
  ncclResult_t (*destroy)(void* context);
};

struct TunerV4 {
  const char* name;
  ncclResult_t (*init)(std::size_t nranks, std::size_t nodes, PluginLogger, void** context);
  ncclResult_t (*getCollInfo)(void* context, int function, std::size_t nbytes, int operations,
                              float** costs, int algorithms, int protocols, int registered,
                              int* channels);
  ncclResult_t (*destroy)(void* context);
};

struct TunerV5 {
  const char* name;
  ncclResult_t (*init)(void** context, std::uint64_t comm_id, std::size_t nranks, std::size_t nodes,
                       PluginLogger, void* nvlink_domains, void* constants);
  ncclResult_t (*getCollInfo)(void* context, int function, std::size_t nbytes, int operations,
                              float** costs, int algorithms, int protocols, int registered,
                              int* channels);
  ncclResult_t (*finalize)(void* context);
};

struct TunerV6 {
  const char* name;
  ncclResult_t (*init)(void** context, std::uint64_t comm_id, std::size_t nranks, std::size_t nodes,
                       PluginLogger, void* nvlink_domains, void* constants);
  ncclResult_t (*getCollInfo)(void* context, int function, std::size_t nbytes, int operations,
                              float** costs, int algorithms, int protocols, int registered,
                              int* channels);
  ncclResult_t (*finalize)(void* context);
  // Called when NCCL issues the collective, which it does not in a simulation.
  ncclResult_t (*getChunkSize)(void* context, int function, std::size_t nbytes, int algorithm,
                               int protocol, int channels, std::size_t* chunk);
};

// A profiler. init receives the address of NCCL's event mask, which the plugin may change at any
// time. NCCL asks for no events of a kind that is not in the mask.
enum ProfilerEvent : int {
  kProfileGroup = 1,
  kProfileColl = 2,
  kProfileP2p = 4,
};

// The parts of events, whose order differs between versions.
struct ProfiledComm {
  const char* name;
  std::uint64_t id;
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
struct ProfiledChoice {
  std::uint8_t channels;
  std::uint8_t warps;
  const char* algorithm;
  const char* protocol;
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
  void* group;
};
struct ProfiledP2pV2 {
  ProfiledComm comm;
  const char* function;
  void* buffer;
  const char* dtype;
  std::size_t count;
  int peer;
};
struct ProfiledP2pV4 {  // version 5 appends the group
  const char* function;
  void* buffer;
  const char* dtype;
  std::size_t count;
  int peer;
  std::uint8_t channels;
};

template <class Type, class Coll, class P2p>
struct ProfilerEventOf {
  Type type;
  void* parent;
  int rank;
  union {
    Coll coll;
    P2p p2p;
  };
};
using ProfilerEventV2 = ProfilerEventOf<std::uint8_t, ProfiledCollV2, ProfiledP2pV2>;
using ProfilerEventV3 = ProfilerEventOf<std::uint8_t, ProfiledCollV3, ProfiledP2pV2>;
using ProfilerEventV4 = ProfilerEventOf<std::uint8_t, ProfiledCollV4, ProfiledP2pV4>;
// Of versions 5 and 6. The parent of these events is a call of the API, which csrc/plugin ignores.
using ProfilerEventV5 = ProfilerEventOf<std::uint64_t, ProfiledCollV5, ProfiledP2pV4>;

template <class Init, class Event>
struct Profiler {
  const char* name;
  Init init;
  ncclResult_t (*startEvent)(void* context, void** handle, Event* event);
  ncclResult_t (*stopEvent)(void* handle);
  ncclResult_t (*recordEventState)(void* handle, int state, void* arguments);
  ncclResult_t (*finalize)(void* context);
};
using ProfilerInitV2 = ncclResult_t (*)(void** context, int* mask);
using ProfilerInitV4 = ncclResult_t (*)(void** context, int* mask, const char* name,
                                        std::uint64_t comm_id, int nodes, int nranks, int rank,
                                        PluginLogger);
using ProfilerInitV5 = ncclResult_t (*)(void** context, std::uint64_t comm_id, int* mask,
                                        const char* name, int nodes, int nranks, int rank,
                                        PluginLogger);
using ProfilerV2 = Profiler<ProfilerInitV2, ProfilerEventV2>;
using ProfilerV3 = Profiler<ProfilerInitV2, ProfilerEventV3>;
using ProfilerV4 = Profiler<ProfilerInitV4, ProfilerEventV4>;
using ProfilerV5 = Profiler<ProfilerInitV5, ProfilerEventV5>;
using ProfilerV6 = ProfilerV5;

}  // namespace pynccl::abi

#include "nccl/plugins.h"

#include <dlfcn.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cfloat>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "abi/nccl_plugin_types.h"
#include "driver/memory.h"
#include "driver/record.h"
#include "driver/settings.h"
#include "nccl/table.h"

namespace cuda_double {
namespace {

constexpr int kAlgorithms = 7, kProtocols = 3;  // from 2.23 on
enum Algorithm { kTree, kRing, kNvls = 4, kPat = 6 };
enum Protocol { kLL, kLL128, kSimple };

using Costs = std::array<std::array<float, kProtocols>, kAlgorithms>;

// A kind of plugin: loaded for the first communicator and unloaded with the last one. After a
// failure it is not searched again.
struct Loaded {
  const char* variable;
  const void* (*find)(void* library, int& version);

  std::mutex mutex{};
  int users = 0;
  bool failed = false;
  void* library = nullptr;
  int version = 0;
  const void* plugin = nullptr;

  template <class Interface>
  const Interface& as() const {
    return *static_cast<const Interface*>(plugin);
  }

  bool load() {
    if (failed) return false;
    if (users++ > 0) return true;
    const char* name = std::getenv(variable);
    constexpr size_t kLongest = 254;
    if (name && *name && strcasecmp(name, "none") != 0)
      library = dlopen(std::string(name).substr(0, kLongest).c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library) plugin = find(library, version);
    if (plugin) return true;
    if (library) dlclose(library);
    library = nullptr;
    failed = true;
    users = 0;
    return false;
  }

  void unload() {
    if (--users > 0) return;
    dlclose(library);
    library = nullptr;
    plugin = nullptr;
  }
};

// With NCCL_DOUBLE_PLUGINS=0 this NCCL knows no version.
bool known(int since) { return since <= kNcclVersion && setting("NCCL_DOUBLE_PLUGINS", 1) != 0; }

// The newest version is the last one in the list. The releases of the double use versions 4 to 6 of
// the tuner and 2, 5 and 6 of the profiler.
#define FIND(since, number, symbol)                                         \
  if (void* const one = known(since) ? dlsym(library, #symbol) : nullptr) { \
    found = one;                                                            \
    version = number;                                                       \
  }

const void* find_tuner(void* library, int& version) {
  const void* found = nullptr;
#define TUNER FIND
#define PROFILER(since, number, symbol)
#include "abi/nccl_plugin_versions.inc"
  return found;
}

const void* find_profiler(void* library, int& version) {
  const void* found = nullptr;
#define TUNER(since, number, symbol)
#define PROFILER FIND
#include "abi/nccl_plugin_versions.inc"
  return found;
}

Loaded& tuners() {
  static Loaded& one = *new Loaded{"NCCL_TUNER_PLUGIN", find_tuner};
  return one;
}

Loaded& profilers() {
  static Loaded& one = *new Loaded{"NCCL_PROFILER_PLUGIN", find_profiler};
  return one;
}

int profiler_mask = 0;  // one for all communicators

void log(unsigned, unsigned long, const char*, int, const char*, ...) {}

bool offered(int function, int algorithm, int protocol, int nranks) {
  if (algorithm == kRing) return true;
  if (algorithm == kTree) return function == kPluginAllReduce;
  if (algorithm == kNvls) return protocol == kSimple && nranks > 2;
  const bool blocks = function == kPluginAllGather || function == kPluginReduceScatter;
  return algorithm == kPat && protocol == kSimple && blocks;
}

Costs costs_of(const PluginOperation& operation, int nranks) {
  // Microseconds, and bytes per microsecond, by protocol.
  constexpr float kLatency[kProtocols] = {5, 8, 13}, kRate[kProtocols] = {15e3, 80e3, 130e3};
  Costs costs;
  for (int a = 0; a < kAlgorithms; ++a) {
    const auto ranks = static_cast<unsigned>(nranks);
    const auto steps = static_cast<float>(a == kRing ? nranks - 1 : std::bit_width(ranks) - 1);
    const float rate = a == kRing ? 1.0f : a == kNvls ? 1.4f : 0.7f;
    for (int p = 0; p < kProtocols; ++p) {
      const auto nbytes = static_cast<float>(operation.nbytes);
      costs[a][p] = offered(operation.function, a, p, nranks)
                        ? kLatency[p] + steps + (a == kNvls ? 9 : 0) + nbytes / (rate * kRate[p])
                        : kCostIgnored;
    }
  }
  return costs;
}

void need(ncclResult_t result, const char* call) {
  if (result != ncclSuccess) report_violation(std::string("the plugin's ") + call + " has failed");
}

uint64_t now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<uint64_t>(std::chrono::nanoseconds(time).count());
}

// The calls of a profiler, with an event of its version.
template <class Init, class Event>
class Caller {
 public:
  Caller(const Profiler<Init, Event>& profiler, void* context)
      : profiler_(profiler), context_(context) {}

  Event event(ProfilerEvent type, void* parent, int rank) const {
    Event event{};
    event.type = static_cast<decltype(event.type)>(type);
    event.parent = parent;
    event.rank = rank;
    return event;
  }

  void* start(Event event) const {
    char unset = 0;
    void* handle = &unset;
    need(profiler_.startEvent(context_, &handle, &event), "startEvent");
    if (handle != &unset) return handle;
    report_violation("the profiler sets no handle");
    return nullptr;
  }

  void state(void* handle, int state, uint64_t argument = 0) const {
    if (handle) need(profiler_.recordEventState(handle, state, &argument), "recordEventState");
  }

  void stop(void* handle) const {
    if (handle) need(profiler_.stopEvent(handle), "stopEvent");
  }

  // Whether the parent of an operation is a call of the API.
  static constexpr bool kHasApi = requires(Event event) { event.coll.group; };
  static constexpr bool kHasPeerWait = requires(Event event) { event.kernel.time; };

 private:
  const Profiler<Init, Event>& profiler_;
  void* context_;
};

template <class Caller>
void* start_task(const Caller& caller, const PluginTask& task, void* group, int rank) {
  constexpr const char* kAlgorithmNames[kAlgorithms] = {
      "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
  constexpr const char* kProtocolNames[kProtocols] = {"LL", "LL128", "SIMPLE"};
  const PluginOperation& operation = task.operation;
  const bool collective = operation.function >= 0;
  void* parent = group;
  if constexpr (Caller::kHasApi) {
    const ProfilerEvent type = collective ? kProfileCollApi : kProfileP2pApi;
    parent = caller.start(caller.event(type, nullptr, rank));
    caller.stop(parent);
  }
  auto event = caller.event(collective ? kProfileColl : kProfileP2p, parent, rank);
  if (collective) {
    event.coll = {};
    event.coll.call.sendbuff = operation.send;
    event.coll.call.recvbuff = operation.recv;
    event.coll.call.count = operation.count;
    event.coll.call.root = operation.peer;
    event.coll.choice.channels = static_cast<uint8_t>(task.channels);
    event.coll.call.function = operation.name;
    event.coll.choice.algorithm = kAlgorithmNames[task.algorithm];
    event.coll.choice.protocol = kProtocolNames[task.protocol];
    if constexpr (Caller::kHasApi) event.coll.group = group;
  } else {
    event.p2p = {};
    event.p2p.function = operation.name;
    event.p2p.buffer = operation.recv ? operation.recv : const_cast<void*>(operation.send);
    event.p2p.count = operation.count;
    event.p2p.peer = operation.peer;
    if constexpr (requires { event.p2p.channels; })
      event.p2p.channels = static_cast<uint8_t>(task.channels);
    if constexpr (Caller::kHasApi) event.p2p.group = group;
  }
  return caller.start(event);
}

// The proxy of a channel, with as many steps in progress as NCCL has buffers.
template <class Caller>
void transfer(const Caller& caller, const PluginTask& task, int channel, bool sends, int rank) {
  constexpr int kBuffers = 8;
  const int steps = static_cast<int>(setting("NCCL_DOUBLE_NET_STEPS"));
  const std::chrono::duration<double> wait(setting("NCCL_DOUBLE_NET_SECONDS"));
  auto event = caller.event(kProfileProxyOp, task.handle, rank);
  event.proxy = {getpid(), static_cast<uint8_t>(channel), 1 - rank, steps, 1 << 19, sends};
  void* const proxy = caller.start(event);
  for (int first = 0; first < steps; first += kBuffers) {
    void* handles[kBuffers];
    const int count = std::min(kBuffers, steps - first);
    const auto all = [&](int state) {
      for (int i = 0; i < count; ++i) caller.state(handles[i], state);
    };
    for (int i = 0; i < count; ++i)
      handles[i] = caller.start(caller.event(kProfileProxyStep, proxy, rank));
    if (sends) {
      all(kStepSendGpuWait);
      if constexpr (Caller::kHasPeerWait) all(kStepSendPeerWait);
      all(kStepSendWait);
    } else {
      all(kStepReceiveWait);
    }
    if (wait.count() > 0) std::this_thread::sleep_for(wait);
    if (!sends) {
      all(kStepReceiveFlushWait);
      all(kStepReceiveGpuWait);
    }
    for (int i = 0; i < count; ++i) caller.stop(handles[i]);
  }
  caller.stop(proxy);
}

}  // namespace

void Plugins::open(ncclComm_t comm, int nranks, int rank, int device) {
  const std::lock_guard lock(mutex_);
  if (tuned_ || profiled_ || kNcclVersion < 21900) return;
  comm_ = comm;
  nranks_ = nranks;
  rank_ = rank;
  const auto id = static_cast<uint64_t>(device) + 1;
  const auto ranks = static_cast<size_t>(nranks);
  Loaded& t = tuners();
  Loaded& p = profilers();
  const std::scoped_lock load_lock(t.mutex, p.mutex);
  tuned_ = t.load();
  profiled_ = p.load();
  if (tuned_) {
    void** const out = &tuner_;
    need(t.version == 4   ? t.as<TunerV4>().init(ranks, 1, log, out)
         : t.version == 5 ? t.as<TunerV5>().init(out, id, ranks, 1, log, nullptr, nullptr)
                          : t.as<TunerV6>().init(out, id, ranks, 1, log, nullptr, nullptr),
         "init");
  }
  if (profiled_) {
    void** const out = &profiler_;
    int* const mask = &profiler_mask;
    need(p.version == 2 ? p.as<ProfilerV2>().init(out, mask)
                        : p.as<ProfilerV6>().init(out, id, mask, "", 1, nranks, rank, log),
         "init");
    if (profiler_ == nullptr) report_violation("the profiler returns no context");
  }
}

void Plugins::close() {
  const std::lock_guard lock(mutex_);
  Loaded& t = tuners();
  Loaded& p = profilers();
  const std::scoped_lock load_lock(t.mutex, p.mutex);
  if (tuned_) {
    need(t.as<TunerV6>().finalize(tuner_), "finalize");  // at one offset in all versions
    t.unload();
  }
  if (profiled_) {
    need(p.as<ProfilerV6>().finalize(profiler_), "finalize");  // at one offset in all versions
    p.unload();
  }
  tuned_ = profiled_ = false;
}

int Plugins::mask() { return std::atomic_ref(profiler_mask).load(); }

void Plugins::choose(PluginTask& task, bool simulated) {
  const std::lock_guard lock(mutex_);
  const PluginOperation& operation = task.operation;
  task.algorithm = kRing;
  task.protocol = kSimple;
  task.channels = 2;
  if (nranks_ < 2 || operation.function < 0 || !tuned_) return;
  const Loaded& plugin = tuners();
  const int function = operation.function;
  const size_t nbytes = operation.nbytes;
  Costs costs = costs_of(operation, nranks_);
  const Costs before = costs;
  auto** table = reinterpret_cast<float**>(costs.data());
  int channels = 0, algorithm = -1, protocol = -1;
  const auto ask = [&](const auto& tuner) {
    need(tuner.getCollInfo(tuner_, function, nbytes, 1, table, kAlgorithms, kProtocols, 0,
                           &channels),
         "getCollInfo");
  };
  if (plugin.version == 4)
    ask(plugin.as<TunerV4>());
  else if (plugin.version == 5)
    ask(plugin.as<TunerV5>());
  else
    ask(plugin.as<TunerV6>());
  float least = FLT_MAX;
  for (int a = 0; a < kAlgorithms; ++a) {
    for (int p = 0; p < kProtocols; ++p) {
      if (before[a][p] == kCostIgnored && costs[a][p] != kCostIgnored)
        report_violation("the tuner offers an algorithm that NCCL cannot use");
      if (costs[a][p] < 0 || costs[a][p] >= least) continue;
      least = costs[a][p];
      algorithm = a;
      protocol = p;
    }
  }
  if (algorithm < 0) report_violation("the tuner leaves no algorithm");
  constexpr size_t kBytesOfChannel = 1 << 16, kMostChannels = 16;
  if (channels == 0)
    channels = static_cast<int>(std::clamp<size_t>(nbytes / kBytesOfChannel, 1, kMostChannels));
  recorded(
      "tuner choice", [] { return 0; }, comm_, function, nbytes, algorithm, protocol, channels);
  if (simulated) return;
  size_t chunk = 1 << 19;
  if (plugin.version >= 6)
    need(plugin.as<TunerV6>().getChunkSize(tuner_, function, nbytes, algorithm, protocol, channels,
                                           &chunk),
         "getChunkSize");
  task.algorithm = algorithm;
  task.protocol = protocol;
  task.channels = channels;
}

template <class Call>
void Plugins::profile(Call&& call) {
  const std::lock_guard lock(mutex_);
  if (!profiled_ || nranks_ < 2) return;
  const Loaded& plugin = profilers();
  const auto with = [&](const auto& profiler) { call(Caller(profiler, profiler_)); };
  if (plugin.version == 2)
    with(plugin.as<ProfilerV2>());
  else
    with(plugin.as<ProfilerV6>());
}

void Plugins::launch(const std::vector<PluginTask*>& tasks) {
  std::vector<PluginTask*> told;
  for (const bool collective : {true, false})  // NCCL's order
    for (PluginTask* const task : tasks)
      if (task->mask != 0 && *task->operation.name != 0 &&
          collective == (task->operation.function >= 0))
        told.push_back(task);
  if (told.empty()) return;
  profile([&](const auto& caller) {
    void* const group = caller.start(caller.event(kProfileGroup, nullptr, 0));
    for (PluginTask* const task : told) task->handle = start_task(caller, *task, group, rank_);
    for (PluginTask* const task : told) caller.stop(task->handle);
    caller.stop(group);
  });
}

void Plugins::begin(PluginTask& task) {
  if (task.handle == nullptr) return;
  profile([&](const auto& caller) {
    const bool message = task.operation.function < 0;
    for (int channel = 0; channel < task.channels; ++channel) {
      auto event = caller.event(kProfileKernelChannel, task.handle, 0);
      event.kernel.channel = static_cast<uint8_t>(channel);
      if constexpr (requires { event.kernel.time; }) event.kernel.time = now();
      if ((task.mask & kProfileKernelChannel) != 0 && profilers().version > 2)
        task.kernel.push_back(caller.start(event));
    }
    if ((task.mask & (kProfileProxyOp | kProfileProxyStep)) == 0 ||
        setting("NCCL_DOUBLE_NET_STEPS") == 0)
      return;
    for (int channel = 0; channel < task.channels; ++channel) {
      if (!message || task.operation.recv == nullptr) transfer(caller, task, channel, true, rank_);
      if (!message || task.operation.recv != nullptr) transfer(caller, task, channel, false, rank_);
    }
  });
}

void Plugins::end(PluginTask& task) {
  profile([&](const auto& caller) {
    for (void* const handle : task.kernel) {
      caller.state(handle, kKernelChannelStop, now());
      caller.stop(handle);
    }
  });
  task.kernel.clear();
}

}  // namespace cuda_double

// The profiler: while a trace is on, records the collectives and messages that NCCL issues, what
// NCCL chose for them, the times of the kernel's channels, and what the proxies waited for.
#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <ctime>

#include "abi/nccl_plugin_types.h"
#include "plugin/records.h"
#include "plugin/ring.h"

namespace pynccl::plugin {
namespace {

using namespace abi;

constexpr std::size_t kMaxEvents = 1 << 15, kMaxOpen = 1 << 13, kMaxMasks = 16;
constexpr int kMaxChannels = 64;

// A channel or a proxy step that has not ended.
struct Open {
  std::uint64_t number;
  std::uint64_t record;  // 0 once it has ended
  std::uint64_t since;
  int wait;  // of a step; kWaits before the first one
};

Ring<ProfilerRecord, kMaxEvents> records;
Ring<Open, kMaxOpen> opened;
std::atomic<std::uint64_t> launches{0};

// The event masks of the loaded NCCLs. NCCL reports nothing while its mask is 0.
std::array<int*, kMaxMasks> masks{};
std::atomic<int> wanted{0};
std::atomic<int> used_version{0};

void set(int* mask) { std::atomic_ref(*mask).store(wanted.load()); }

// A fork waits for the calls of other threads; otherwise the child could inherit a locked mutex.
[[maybe_unused]] const int registered =
    pthread_atfork([] { mutex.lock(); }, [] { mutex.unlock(); }, [] { mutex.unlock(); });

ncclResult_t init(int version, void** context, int* mask) {
  *context = &records;  // not null, which NCCL treats as no context
  used_version.store(version);
  if (mask == nullptr) return ncclSuccess;
  const std::lock_guard lock(mutex);
  for (int*& known : masks) {
    if (known != nullptr && known != mask) continue;
    known = mask;
    set(mask);
    break;
  }
  return ncclSuccess;
}

std::uint64_t now() {
  constexpr std::uint64_t kNanoseconds = 1'000'000'000;
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<std::uint64_t>(time.tv_sec) * kNanoseconds +
         static_cast<std::uint64_t>(time.tv_nsec);
}

// A handle consists of a number and its kind. NCCL may pass a handle long after its event, and as a
// parent one of another process.
enum Kind : std::uint64_t { kLaunch = 1, kTask, kProxy, kStep, kChannel };
constexpr int kKindBits = 3;

void* handle_of(Kind kind, std::uint64_t number) {
  return reinterpret_cast<void*>(static_cast<std::uintptr_t>(number << kKindBits | kind));
}

std::uint64_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

// The number of a handle of this kind; 0 for others.
std::uint64_t number_of(const void* handle, Kind kind) {
  constexpr std::uint64_t mask = (1 << kKindBits) - 1;
  return (address(handle) & mask) == kind ? address(handle) >> kKindBits : 0;
}

template <std::size_t kSize>
void copy_text(char (&to)[kSize], const char* from) {
  for (std::size_t i = 0; from != nullptr && from[i] != 0 && i + 1 < kSize; ++i) to[i] = from[i];
}

// Version 1 has numbers in place of names.
template <std::size_t kNames>
const char* name_of(std::uint8_t number, const char* const (&names)[kNames]) {
  return number < kNames ? names[number] : nullptr;
}
template <std::size_t kNames>
const char* name_of(const char* name, const char* const (&)[kNames]) {
  return name;
}
constexpr const char* kFunctions[] = {"Broadcast", "Reduce",   "AllGather", "ReduceScatter",
                                      "AllReduce", "SendRecv", "Send",      "Recv"};
constexpr const char* kAlgorithms[] = {
    "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
constexpr const char* kProtocols[] = {"LL", "LL128", "SIMPLE"};

template <class Event>
ProfilerRecord record_of(const Event& event) {
  ProfilerRecord record{};
  record.time = static_cast<std::int64_t>(now());
  record.rank = event.rank;
  const void* group = event.parent;
  if (event.type == kProfileColl) {
    const auto& call = event.coll.call;
    const auto& choice = event.coll.choice;
    record.sendbuff = address(call.sendbuff);
    record.recvbuff = address(call.recvbuff);
    record.peer = kNoChoice;
    record.channels = choice.channels;
    copy_text(record.function, name_of(call.function, kFunctions));
    copy_text(record.algorithm, name_of(choice.algorithm, kAlgorithms));
    copy_text(record.protocol, name_of(choice.protocol, kProtocols));
    if constexpr (requires { event.coll.group; }) group = event.coll.group;
  } else {
    record.sendbuff = address(event.p2p.buffer);
    record.peer = event.p2p.peer;
    if constexpr (requires { event.p2p.channels; }) record.channels = event.p2p.channels;
    copy_text(record.function, name_of(event.p2p.function, kFunctions));
    if constexpr (requires { event.p2p.group; }) group = event.p2p.group;
  }
  record.launch = number_of(group, kLaunch);
  return record;
}

void* open_step(std::uint64_t record) {
  const auto add = [](ProfilerRecord& one) {
    ++one.steps;
    ++one.open;
  };
  if (!records.update(record, add)) return nullptr;
  return handle_of(kStep, opened.add({0, record, 0, kWaits}));
}

void* open_channel(std::uint64_t record, int channel, std::uint64_t time) {
  const auto add = [&](ProfilerRecord& one) {
    one.started |= std::uint64_t{1} << channel;
    ++one.open;
  };
  if (channel >= kMaxChannels || !records.update(record, add)) return nullptr;
  return handle_of(kChannel, opened.add({0, record, time, kWaits}));
}

template <class Event>
ncclResult_t start_event(void*, void** handle, Event* event) {
  *handle = nullptr;  // so that NCCL does not report the states and the end of the event
  switch (event->type) {
    case kProfileGroup:
      if (wanted.load()) *handle = handle_of(kLaunch, ++launches);
      break;
    case kProfileColl:
    case kProfileP2p:  // a captured operation is reported in each launch of its graph
      if (wanted.load()) *handle = handle_of(kTask, records.add(record_of(*event)));
      break;
    case kProfileProxyOp: {
      const std::uint64_t record = number_of(event->parent, kTask);
      if (event->proxy.pid == getpid() &&
          records.update(record, [](ProfilerRecord& one) { ++one.proxies; }))
        *handle = handle_of(kProxy, record);
      break;
    }
    case kProfileProxyStep:
      *handle = open_step(number_of(event->parent, kProxy));
      break;
    case kProfileKernelChannel: {
      std::uint64_t time = 0;
      if constexpr (requires { event->kernel.time; })
        time = event->kernel.time;
      else
        time = now();
      *handle = open_channel(number_of(event->parent, kTask), event->kernel.channel, time);
      break;
    }
    default:  // calls of the API, and events of later versions
      break;
  }
  return ncclSuccess;
}

int wait_of(int state) {
  switch (state) {
    case kStepSendGpuWait:
      return kSendGpu;
    case kStepSendPeerWait:
      return kSendPeer;
    case kStepSendWait:
      return kSendNetwork;
    case kStepReceiveWait:
      return kReceive;
    case kStepReceiveFlushWait:
      return kReceiveFlush;
    case kStepReceiveGpuWait:
      return kReceiveGpu;
    default:
      return kWaits;
  }
}

// Ends the current wait of a step, and begins the next one unless the step ends.
void change_step(std::uint64_t number, int next, bool ends) {
  const std::uint64_t time = now();
  Open before{};
  opened.update(number, [&](Open& one) {
    before = one;
    one.wait = next;
    one.since = time;
    if (ends) one.record = 0;
  });
  records.update(before.record, [&](ProfilerRecord& one) {
    if (before.wait != kWaits) one.waits[before.wait] += time - before.since;
    if (ends) --one.open;
  });
}

// Ends a channel. time: of its end; 0 if unknown.
void end_channel(std::uint64_t number, std::uint64_t time) {
  Open before{};
  opened.update(number, [&](Open& one) {
    before = one;
    one.record = 0;
  });
  records.update(before.record, [&](ProfilerRecord& one) {
    --one.open;
    if (before.since == 0 || time < before.since) return;
    const std::uint64_t duration = time - before.since;
    const bool first = one.stopped++ == 0;
    one.began = first ? before.since : std::min(one.began, before.since);
    one.ended = std::max(one.ended, time);
    one.shortest = first ? duration : std::min(one.shortest, duration);
    one.longest = std::max(one.longest, duration);
  });
}

ncclResult_t record_event_state(void* handle, int state, void* arguments) {
  if (const std::uint64_t step = number_of(handle, kStep); step != 0 && wait_of(state) != kWaits)
    change_step(step, wait_of(state), false);
  if (const std::uint64_t channel = number_of(handle, kChannel);
      channel != 0 && state == kKernelChannelStop && arguments != nullptr)
    end_channel(channel, *static_cast<const std::uint64_t*>(arguments));
  return ncclSuccess;
}

// From version 4 on, the end of a channel was a state.
template <int version>
ncclResult_t stop_event(void* handle) {
  if (const std::uint64_t step = number_of(handle, kStep)) change_step(step, kWaits, true);
  if (const std::uint64_t channel = number_of(handle, kChannel))
    end_channel(channel, version < 4 ? now() : 0);
  return ncclSuccess;
}

template <int version>
ncclResult_t init_v1(void** context, int* mask) {
  return init(version, context, mask);
}

ncclResult_t init_v4(void** context, int* mask, const char*, std::uint64_t, int, int, int,
                     PluginLogger) {
  return init(4, context, mask);
}

template <int version>
ncclResult_t init_v5(void** context, std::uint64_t, int* mask, const char*, int, int, int,
                     PluginLogger) {
  return init(version, context, mask);
}

ncclResult_t finalize(void*) { return ncclSuccess; }

constexpr char kName[] = "pynccl";

}  // namespace
}  // namespace pynccl::plugin

extern "C" {
#pragma GCC visibility push(default)

using namespace pynccl::plugin;

#define TUNER(since, version, symbol)
#define PROFILER(since, version, symbol) extern const pynccl::abi::ProfilerV##version symbol;
#include "abi/nccl_plugin_versions.inc"

#define CALLBACKS(version, init) \
  {kName, init, start_event, stop_event<version>, record_event_state, finalize}

const pynccl::abi::ProfilerV1 ncclProfiler_v1 = CALLBACKS(1, init_v1<1>);
const pynccl::abi::ProfilerV2 ncclProfiler_v2 = CALLBACKS(2, init_v1<2>);
const pynccl::abi::ProfilerV3 ncclProfiler_v3 = CALLBACKS(3, init_v1<3>);
const pynccl::abi::ProfilerV4 ncclProfiler_v4 = CALLBACKS(4, init_v4);
const pynccl::abi::ProfilerV5 ncclProfiler_v5 = CALLBACKS(5, init_v5<5>);
const pynccl::abi::ProfilerV6 ncclProfiler_v6 = CALLBACKS(6, init_v5<6>);

std::uint64_t pynccl_plugin_events(std::uint64_t after, ProfilerRecord* out, std::uint64_t size) {
  return records.copy(after, out, size);
}

std::uint64_t pynccl_plugin_profile(int events) {
  wanted.store(events);
  {
    const std::lock_guard lock(mutex);
    for (int* const mask : masks)
      if (mask != nullptr) set(mask);
  }
  return records.last();
}

int pynccl_plugin_profiler_version() { return used_version.load(); }

#pragma GCC visibility pop
}

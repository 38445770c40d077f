// The profiler: while a trace is on, records the collectives and messages that NCCL issues, with
// their algorithm, protocol and channels.
#include <atomic>
#include <ctime>

#include "abi/nccl_plugin_types.h"
#include "plugin/records.h"
#include "plugin/ring.h"

namespace pynccl::plugin {
namespace {

using namespace abi;

constexpr std::size_t kMostEvents = 1 << 15, kMostMasks = 16;
constexpr int kWanted = kProfileColl | kProfileP2p;

Ring<ProfilerRecord, kMostEvents> records;

// The event masks of the loaded NCCLs. NCCL asks for nothing while its mask is 0.
std::mutex masks_mutex;
std::array<int*, kMostMasks> masks{};
bool wanted = false;

void set(int* mask) { std::atomic_ref(*mask).store(wanted ? kWanted : 0); }

ncclResult_t open(void** context, int* mask) {
  *context = &records;  // NCCL takes null for no context
  const std::lock_guard lock(masks_mutex);
  for (int*& known : masks) {
    if (known != nullptr && known != mask) continue;
    known = mask;
    break;
  }
  set(mask);
  return ncclSuccess;
}

std::int64_t now() {
  constexpr std::int64_t kNanoseconds = 1'000'000'000;
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * kNanoseconds + time.tv_nsec;
}

template <std::size_t kSize>
void copy_text(char (&to)[kSize], const char* from) {
  for (std::size_t i = 0; from != nullptr && from[i] != 0 && i + 1 < kSize; ++i) to[i] = from[i];
}

std::uint64_t address(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

template <class Event>
ncclResult_t start(void*, void** handle, Event* event) {
  *handle = nullptr;  // so that NCCL does not tell when the event stops
  ProfilerRecord record{};
  record.time = now();
  record.rank = event->rank;
  if (event->type == kProfileColl) {
    const ProfiledCall& call = event->coll.call;
    const ProfiledChoice& choice = event->coll.choice;
    record.sendbuff = address(call.sendbuff);
    record.recvbuff = address(call.recvbuff);
    record.peer = kNoChoice;
    record.channels = choice.channels;
    copy_text(record.function, call.function);
    copy_text(record.algorithm, choice.algorithm);
    copy_text(record.protocol, choice.protocol);
  } else if (event->type == kProfileP2p) {
    const auto& p2p = event->p2p;
    record.sendbuff = address(p2p.buffer);
    record.peer = p2p.peer;
    if constexpr (requires { p2p.channels; }) record.channels = p2p.channels;
    copy_text(record.function, p2p.function);
  } else {  // the parent of an event
    return ncclSuccess;
  }
  records.add(record);
  return ncclSuccess;
}

ncclResult_t open_v4(void** context, int* mask, const char*, std::uint64_t, int, int, int,
                     PluginLogger) {
  return open(context, mask);
}

ncclResult_t open_v5(void** context, std::uint64_t, int* mask, const char*, int, int, int,
                     PluginLogger) {
  return open(context, mask);
}

ncclResult_t stop(void*) { return ncclSuccess; }
ncclResult_t change(void*, int, void*) { return ncclSuccess; }
ncclResult_t close(void*) { return ncclSuccess; }

constexpr char kName[] = "pynccl";

}  // namespace
}  // namespace pynccl::plugin

extern "C" {
#pragma GCC visibility push(default)

using namespace pynccl::plugin;

#define TUNER(since, version, symbol)
#define PROFILER(since, version, symbol) extern const pynccl::abi::ProfilerV##version symbol;
#include "abi/nccl_plugin_versions.inc"

const pynccl::abi::ProfilerV2 ncclProfiler_v2 = {kName, open, start, stop, change, close};
const pynccl::abi::ProfilerV3 ncclProfiler_v3 = {kName, open, start, stop, change, close};
const pynccl::abi::ProfilerV4 ncclProfiler_v4 = {kName, open_v4, start, stop, change, close};
const pynccl::abi::ProfilerV5 ncclProfiler_v5 = {kName, open_v5, start, stop, change, close};
const pynccl::abi::ProfilerV6 ncclProfiler_v6 = {kName, open_v5, start, stop, change, close};

std::uint64_t pynccl_plugin_events(std::uint64_t after, ProfilerRecord* out, std::uint64_t most) {
  return records.copy(after, out, most);
}

void pynccl_plugin_profile(int on) {
  const std::lock_guard lock(masks_mutex);
  wanted = on != 0;
  for (int* const mask : masks)
    if (mask != nullptr) set(mask);
}

#pragma GCC visibility pop
}

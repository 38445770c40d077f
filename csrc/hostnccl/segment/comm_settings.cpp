#include "hostnccl/segment/comm_settings.h"

#include <strings.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <limits>

#include "hostnccl/base/error.h"

namespace hostnccl {
namespace {

void check_range(const char* field, int value, int least, int most) {
  if (value == abi::kUndefInt || (value >= least && value <= most)) return;
  fail(abi::ncclInvalidArgument, "config->%s=%d is not in [%d, %d]", field, value, least, most);
}

uint32_t positive_or_one(int value, const char* name) {
  if (value == abi::kUndefInt) return 1;
  if (value < 1) fail(abi::ncclInvalidArgument, "config->%s=%d is below 1", name, value);
  return static_cast<uint32_t>(value);
}

void check_flag(const char* field, int value) {
  if (value == abi::kUndefInt || value == 0 || value == 1) return;
  fail(abi::ncclInvalidArgument, "config->%s=%d is neither 0 nor 1", field, value);
}

// Checks the fields that this engine ignores, as NCCL 2.30 does.
void check_ignored(const abi::ncclConfig_t& config) {
  constexpr int kAny = std::numeric_limits<int>::max();
  constexpr int kMostChannels = 64;
  check_range("cgaClusterSize", config.cgaClusterSize, 0, kAny);
  check_range("minCTAs", config.minCTAs, 1, kAny);
  check_range("maxCTAs", config.maxCTAs, 1, kAny);
  // As in NCCL, an undefined maximum is below every minimum.
  if (config.minCTAs > config.maxCTAs && config.minCTAs != abi::kUndefInt) {
    fail(abi::ncclInvalidArgument,
         "config->minCTAs=%d is above config->maxCTAs=%d: set both, or the maximum alone",
         config.minCTAs, config.maxCTAs);
  }
  check_flag("collnetEnable", config.collnetEnable);
  check_range("CTAPolicy", config.CTAPolicy, 0, 3);
  check_range("nvlsCTAs", config.nvlsCTAs, 1, kAny);
  check_range("nChannelsPerNetPeer", config.nChannelsPerNetPeer, 1, kMostChannels);
  check_flag("nvlinkCentricSched", config.nvlinkCentricSched);
  check_range("graphUsageMode", config.graphUsageMode, 0, 2);
  check_range("maxP2pPeers", config.maxP2pPeers, 1, kAny);
  check_flag("graphStreamOrdering", config.graphStreamOrdering);
  // NCCL's built-in networks. Others are plugins.
  const auto is_name = [&](const char* name) { return strcasecmp(config.netName, name) == 0; };
  if (config.netName != nullptr && !is_name("Socket") && !is_name("IB")) {
    fail(abi::ncclInvalidUsage, "config->netName=\"%s\" is not a network: Socket or IB",
         config.netName);
  }
}

// As in NCCL, NCCL_COMM_BLOCKING overrides any configuration, the default one and that of a parent
// included.
void read_environment(CommSettings& settings) {
  const char* environment = std::getenv("NCCL_COMM_BLOCKING");
  if (!settings.strict_calls || environment == nullptr) return;
  if (std::strcmp(environment, "0") == 0) settings.blocking = false;
  if (std::strcmp(environment, "1") == 0) settings.blocking = true;
}

}  // namespace

CommSettings read_config(const abi::ncclConfig_t* given, const CommSettings& inherited) {
  if (given == nullptr) {
    CommSettings settings = inherited;
    read_environment(settings);
    return settings;
  }
  constexpr size_t kSmallest = offsetof(abi::ncclConfig_t, blocking);
  constexpr size_t kLargest = size_t{1} << 16;  // a larger size is uninitialized memory
  if (given->magic != abi::kApiMagic) {
    fail(abi::ncclInvalidArgument,
         "config->magic=%#x: it was not initialized with NCCL_CONFIG_INITIALIZER", given->magic);
  }
  if (given->size < kSmallest || given->size > kLargest) {
    fail(abi::ncclInvalidArgument, "config->size=%zu is not the size of an ncclConfig_t",
         given->size);
  }
  abi::ncclConfig_t config;  // fields that an older caller lacks keep their defaults
  std::memcpy(&config, given, std::min(given->size, sizeof config));
  CommSettings settings;  // the config of a split replaces the parent's completely
  check_flag("blocking", config.blocking);
  if (config.blocking != abi::kUndefInt) settings.blocking = config.blocking == 1;
  read_environment(settings);
  check_flag("splitShare", config.splitShare);
  check_flag("shrinkShare", config.shrinkShare);
  settings.split_share = config.splitShare == 1;
  settings.shrink_share = config.shrinkShare == 1;
  if (settings.strict) check_ignored(config);
  // As in NCCL, there may be no context for one-sided operations.
  settings.signals.contexts =
      settings.strict && config.numRmaCtx == 0 ? 0 : positive_or_one(config.numRmaCtx, "numRmaCtx");
  settings.signals.per_context = positive_or_one(config.numRmaSig, "numRmaSig");
  if (settings.signals.contexts > kMaxSignals / settings.signals.per_context) {
    fail(abi::ncclInvalidArgument,
         "config->numRmaCtx=%u times config->numRmaSig=%u is more than hostnccl's %u signals",
         settings.signals.contexts, settings.signals.per_context, kMaxSignals);
  }
  check_flag("rmaEagerInit", config.rmaEagerInit);
  if (config.rmaEagerInit != abi::kUndefInt) settings.rma_eager_init = config.rmaEagerInit == 1;
  if (config.commName != nullptr) settings.name = config.commName;
  return settings;
}

}  // namespace hostnccl

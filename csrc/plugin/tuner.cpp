// The tuner: records NCCL's cost table of each collective, and forces the choices of the rules.
#include <cfloat>

#include "abi/nccl_plugin_types.h"
#include "common/thread_id.h"
#include "plugin/records.h"
#include "plugin/ring.h"

namespace pynccl::plugin {
namespace {

using namespace abi;

constexpr std::size_t kMaxChoices = 4096, kMaxContexts = 1024, kMaxRules = 256;

// A communicator.
struct Context {
  std::uint64_t number;  // from 1
  int nranks;
};

Ring<TunerChoice, kMaxChoices> choices;
Ring<Context, kMaxContexts> contexts;

std::array<TunerRule, kMaxRules> rules;
std::size_t rule_count = 0;

// NCCL's handle of a context is its number.
std::uint64_t number_of(void* context) { return reinterpret_cast<std::uintptr_t>(context); }

ncclResult_t init(std::size_t nranks, void** context) {
  const std::uint64_t number = contexts.add({0, static_cast<int>(nranks)});
  *context = reinterpret_cast<void*>(static_cast<std::uintptr_t>(number));
  return ncclSuccess;
}

ncclResult_t finalize(void*) { return ncclSuccess; }

int nranks_of(std::uint64_t context) {
  int nranks = 0;
  contexts.update(context, [&](const Context& one) { nranks = one.nranks; });
  return nranks;
}

// Selects what NCCL does: the first of the lowest costs.
void choose(const float* costs, TunerChoice& choice) {
  choice.algorithm = choice.protocol = kNoChoice;
  float least = FLT_MAX;
  for (int i = 0; i < choice.algorithms * choice.protocols; ++i) {
    if (!(costs[i] >= 0 && costs[i] < least)) continue;
    least = costs[i];
    choice.algorithm = i / choice.protocols;
    choice.protocol = i % choice.protocols;
  }
}

// Applies the first matching rule, unless NCCL cannot use its algorithm and protocol.
void force(float* costs, TunerChoice& choice, int* channels) {
  const int nranks = nranks_of(choice.context);
  const std::lock_guard lock(mutex);
  for (std::size_t i = 0; i < rule_count; ++i) {
    const TunerRule& rule = rules[i];
    if (rule.function != choice.function || choice.nbytes < rule.min_bytes ||
        choice.nbytes > rule.max_bytes || (rule.nranks != 0 && rule.nranks != nranks))
      continue;
    const int wanted = rule.algorithm * choice.protocols + rule.protocol;
    choice.rule = -1;
    if (rule.algorithm >= choice.algorithms || rule.protocol >= choice.protocols ||
        !(costs[wanted] >= 0 && costs[wanted] <= FLT_MAX))
      return;
    choice.rule = static_cast<int>(i) + 1;
    for (int other = 0; other < choice.algorithms * choice.protocols; ++other)
      if (costs[other] == 0) costs[other] = kCostIgnored;
    costs[wanted] = 0;
    if (rule.channels > 0) *channels = choice.channels = rule.channels;
    return;
  }
}

ncclResult_t get_coll_info(void* context, int function, std::size_t nbytes, int operations,
                           float** table, int algorithms, int protocols, int registered,
                           int* channels) {
  float* const costs = reinterpret_cast<float*>(table);
  TunerChoice choice{};
  choice.context = number_of(context);
  choice.nbytes = nbytes;
  choice.thread = common::thread_id();
  choice.function = function;
  choice.operations = operations;
  choice.registered = registered;
  choice.algorithm = choice.protocol = kNoChoice;
  for (auto& row : choice.costs) std::fill(std::begin(row), std::end(row), kCostIgnored);
  if (costs != nullptr && algorithms > 0 && protocols > 0) {
    choice.algorithms = algorithms;
    choice.protocols = protocols;
    for (int a = 0; a < std::min(algorithms, TunerChoice::kMaxAlgorithms); ++a)
      for (int p = 0; p < std::min(protocols, TunerChoice::kMaxProtocols); ++p)
        choice.costs[a][p] = costs[a * protocols + p];
    force(costs, choice, channels);
    choose(costs, choice);
  }
  choices.add(choice);
  return ncclSuccess;
}

ncclResult_t init_v2(std::size_t nranks, std::size_t, PluginLogger, void** context) {
  return init(nranks, context);
}

ncclResult_t init_v5(void** context, std::uint64_t, std::size_t nranks, std::size_t, PluginLogger,
                     void*, void*) {
  return init(nranks, context);
}

// NCCL 2.21 passes no cost table, so a rule could select what it cannot use. Rules do not apply.
ncclResult_t get_coll_info_v2(void* context, int function, std::size_t nbytes, int, int,
                              int operations, int*, int*, int* channels) {
  return get_coll_info(context, function, nbytes, operations, nullptr, 0, 0, -1, channels);
}

ncclResult_t get_coll_info_v3(void* context, int function, std::size_t nbytes, int operations,
                              float** costs, int algorithms, int protocols, int* channels) {
  return get_coll_info(context, function, nbytes, operations, costs, algorithms, protocols, -1,
                       channels);
}

ncclResult_t get_chunk_size(void* context, int function, std::size_t nbytes, int algorithm,
                            int protocol, int channels, std::size_t* chunk) {
  choices.find([&](TunerChoice& choice) {
    if (choice.context != number_of(context) || choice.function != function ||
        choice.nbytes != nbytes || choice.algorithm != algorithm || choice.protocol != protocol)
      return false;
    choice.channels = channels;
    choice.chunk = *chunk;
    return true;
  });
  return ncclSuccess;
}

constexpr char kName[] = "pynccl";

}  // namespace
}  // namespace pynccl::plugin

extern "C" {
#pragma GCC visibility push(default)

using namespace pynccl::plugin;

#define TUNER(since, version, symbol) extern const pynccl::abi::TunerV##version symbol;
#define PROFILER(since, version, symbol)
#include "abi/nccl_plugin_versions.inc"

const pynccl::abi::TunerV2 ncclTunerPlugin_v2 = {kName, init_v2, get_coll_info_v2, finalize};
const pynccl::abi::TunerV3 ncclTunerPlugin_v3 = {kName, init_v2, get_coll_info_v3, finalize};
const pynccl::abi::TunerV4 ncclTunerPlugin_v4 = {kName, init_v2, get_coll_info, finalize};
const pynccl::abi::TunerV5 ncclTunerPlugin_v5 = {kName, init_v5, get_coll_info, finalize};
const pynccl::abi::TunerV6 ncclTunerPlugin_v6 = {kName, init_v5, get_coll_info, finalize,
                                                 get_chunk_size};

std::uint64_t pynccl_plugin_choices(std::uint64_t after, TunerChoice* out, std::uint64_t size) {
  return choices.copy(after, out, size);
}

std::uint64_t pynccl_plugin_rules(const TunerRule* given, std::uint64_t count) {
  const std::lock_guard lock(mutex);
  rule_count = std::min<std::uint64_t>(count, kMaxRules);
  std::copy_n(given, rule_count, rules.begin());
  return rule_count;
}

#pragma GCC visibility pop
}

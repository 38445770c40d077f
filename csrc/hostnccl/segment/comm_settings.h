// CommSettings: the settings of one communicator, from the fields of ncclConfig_t that this engine
// uses. It ignores the others, which concern GPU kernels and networks. In strict mode it rejects
// the values that NCCL rejects.
#pragma once

#include <atomic>
#include <string>

#include "abi/nccl_types.h"
#include "hostnccl/base/params.h"
#include "hostnccl/segment/rank_state.h"

namespace hostnccl {

// Whether strict mode includes strict calls, for communicators created from now on. Off in a
// program that implements these rules itself (hostSetStrictCalls).
inline std::atomic<bool> strict_calls_enabled{true};

struct CommSettings {
  bool blocking = true;
  bool strict = param_number(ParamId::Strict) != 0;
  // In strict mode: a call on a non-blocking communicator is in progress when it returns, the next
  // call is refused until it is complete, and a refusal is the communicator's permanent error.
  bool strict_calls = strict && strict_calls_enabled;
  // Whether first operations connect their ranks: see group/group.cpp.
  bool connects = strict_calls && param_number(ParamId::Connect) != 0;
  bool split_share = false;   // of children created by split(), in strict mode only
  bool shrink_share = false;  // the same for shrink()
  std::string name;
  SignalRange signals;
  bool rma_eager_init = false;  // signals work without a window
};

// Checks and reads a config, which may be of an older or newer version of the struct. Null: returns
// inherited. In strict mode NCCL_COMM_BLOCKING overrides either.
CommSettings read_config(const pynccl::abi::ncclConfig_t* config,
                         const CommSettings& inherited = {});

}  // namespace hostnccl

// Settings of one communicator: the fields of ncclConfig_t that this engine uses. It ignores the
// others, which concern GPU kernels and networks; in strict mode it rejects the values that NCCL
// rejects.
#pragma once

#include <string>

#include "abi/nccl_types.h"
#include "hostnccl/base/params.h"
#include "hostnccl/segment/rank_state.h"

namespace hostnccl {

// Whether strict mode includes strict calls, for communicators created from now on. Off for a
// program that implements these rules itself (hostSetStrictCalls).
void set_strict_calls(bool on);
bool strict_calls_on();

struct CommSettings {
  bool blocking = true;
  bool strict = param_number(ParamId::Strict) != 0;
  // In strict mode: calls of a non-blocking communicator are in progress when they return, the next
  // call is refused until they complete, and a refusal becomes the communicator's permanent error.
  bool strict_calls = strict && strict_calls_on();
  // First operations connect their ranks: see Connections.
  bool connects = strict_calls && param_number(ParamId::Connect) != 0;
  bool split_share = false;   // of the children that split() makes, and shrink()
  bool shrink_share = false;  // both have an effect in strict mode only
  std::string name;
  SignalRange signals;
  bool rma_eager_init = false;  // signals work without a window
};

// config may be of an older or newer version of the struct; if it is null, inherited is returned.
CommSettings read_config(const pynccl::abi::ncclConfig_t* config,
                         const CommSettings& inherited = {});

}  // namespace hostnccl

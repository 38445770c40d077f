// What of ncclConfig_t concerns this engine. The rest steers GPU kernels and networks, is accepted
// and has no effect.
#pragma once

#include <string>

#include "abi/nccl_types.h"
#include "hostnccl/segment/rank_state.h"

namespace hostnccl {

struct CommSettings {
  bool blocking = true;
  std::string name;
  SignalRange signals;
  bool rma_eager_init = false;  // signals may be used before there is a window
};

// config may be null (then: inherited) or of an older or newer version of the struct.
CommSettings read_config(const pynccl::abi::ncclConfig_t* config,
                         const CommSettings& inherited = {});

}  // namespace hostnccl

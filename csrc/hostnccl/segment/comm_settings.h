// Settings of one communicator: the fields of ncclConfig_t that this engine uses. It ignores the
// others, which concern GPU kernels and networks; in strict mode it refuses the values that NCCL
// refuses.
#pragma once

#include <string>

#include "abi/nccl_types.h"
#include "hostnccl/base/params.h"
#include "hostnccl/segment/rank_state.h"

namespace hostnccl {

struct CommSettings {
  bool blocking = true;
  bool strict = param_number(ParamId::Strict) != 0;
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

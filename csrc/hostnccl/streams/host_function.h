// Host functions, called by hostLaunchHostFunc(). They report failure by an exception or, as C
// functions, by fail_function().
#pragma once

#include "abi/driver_types.h"
#include "hostnccl/base/error.h"

namespace hostnccl {

void run_function(abi::CUhostFn function, void* data);

// Makes the run_function() of this thread throw the error once the function has returned.
void fail_function(Error error);

}  // namespace hostnccl

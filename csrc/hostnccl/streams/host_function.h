// Host functions: what hostLaunchHostFunc() calls. One reports its failure by an exception or, as a
// C function, by fail_function().
#pragma once

#include "abi/driver_types.h"
#include "hostnccl/base/error.h"

namespace hostnccl {

void run_function(abi::CUhostFn function, void* data);

// Makes the run_function() of this thread throw the error once the function has returned.
void fail_function(Error error);

}  // namespace hostnccl

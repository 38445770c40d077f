// hostWorkFailure() and hostFailFunction(): which failure of queued work a driver API call
// encountered, and how a host function reports a failure. CUDA has neither.
#include "hostnccl/streams/device_error.h"
#include "hostnccl/streams/host_function.h"

using namespace hostnccl;

extern "C" {

// Whether the last driver API call that failed on this thread encountered a failure of work on a
// stream; if so, its result, its text, and the handle of its communicator (or the argument of
// hostFailFunction()). The text is valid until the next failed call of this thread. The failure
// then counts as reported: work that is enqueued on the stream later does not inherit it.
[[gnu::visibility("default")]] int hostWorkFailure(abi::ncclResult_t* result, const char** text,
                                                   const void** origin) {
  const SharedFailure failure = last_work_failure();
  if (failure == nullptr) return 0;
  failure->reported = true;
  *result = failure->error.code();
  *text = failure->error.text().c_str();
  *origin = failure->error.origin();
  return 1;
}

// Called in a host function: marks it, and the work that depends on it, as failed.
[[gnu::visibility("default")]] void hostFailFunction(abi::ncclResult_t result, const char* text,
                                                     const void* origin) {
  fail_function(Error(result, text).set_origin(origin));
}

}  // extern "C"

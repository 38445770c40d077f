// hostWorkFailure() and hostFailFunction(): which failure of queued work a call of the driver API
// has met, and how a host function reports that it has failed. CUDA has neither.
#include "hostnccl/streams/device_error.h"
#include "hostnccl/streams/host_function.h"

using namespace hostnccl;

extern "C" {

// Whether the last call of the driver API that has failed on this thread has met a failure of work
// on a stream; if so, its result, its text, and the handle of its communicator (or what
// hostFailFunction() was called with). The text is valid until the next failed call of this thread.
// The failure then counts as reported: what is enqueued on the stream later does not have it.
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

// Called in a host function: it has failed, and so has what depends on it.
[[gnu::visibility("default")]] void hostFailFunction(abi::ncclResult_t result, const char* text,
                                                     const void* origin) {
  fail_function(Error(result, text).set_origin(origin));
}

}  // extern "C"

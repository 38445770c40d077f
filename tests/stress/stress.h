// Support for the stress program: NCCL's C API as declared by the list of entry points, ranks as
// threads, and checks that print the file and line of a failure.
#pragma once

#include <cstdint>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "abi/driver_types.h"

using namespace pynccl::abi;

#include "abi/c_params.inc"
#define FUNCTION(since, result, name, ...) extern "C" result name(__VA_ARGS__);
#include "abi/nccl_functions.inc"
#undef FUNCTION
#define FUNCTION(symbol, result, name, ...) extern "C" result host##name(__VA_ARGS__);
#include "abi/driver_functions.inc"
#include "abi/undef.inc"

namespace stress {

[[noreturn]] void stop(const char* file, int line, const std::string& what);

void expect_result(const char* file, int line, const char* call, unsigned got, unsigned wanted);
void expect_text(const char* file, int line, const std::string& text, const std::string& part);

#define EXPECT(result, call) stress::expect_result(__FILE__, __LINE__, #call, (call), (result))
#define OK(call) EXPECT(0u, call)
#define CHECK(condition)                                            \
  do {                                                              \
    if (!(condition)) stress::stop(__FILE__, __LINE__, #condition); \
  } while (false)
#define CHECK_LAST_ERROR(part) \
  stress::expect_text(__FILE__, __LINE__, ncclGetLastError(nullptr), part)

ncclUniqueId new_id();

// Runs body in one thread per rank, and joins them.
void in_threads(int nranks, const std::function<void(int rank)>& body);

// Does the same with a communicator per rank, and destroys it afterwards. ncclCommDestroy must
// return the error of the communicator, or failure, with which an operation of body may still end.
void with_communicators(int nranks, const std::function<void(int rank, ncclComm_t comm)>& body,
                        ncclResult_t failure = ncclSuccess);

// The asynchronous error of the communicator, once it is no longer ncclInProgress.
ncclResult_t state_of(ncclComm_t comm);

// The sum of the values of all ranks.
int32_t sum_over(ncclComm_t comm, int32_t value);
// Checks the result of an operation. A non-blocking communicator may return before issuing it.
void issued(ncclComm_t comm, ncclResult_t result);

void pause(int milliseconds);

cudaStream_t new_stream();
ncclConfig_t non_blocking();

// The scenarios. The comment at the top of each file describes them.
void collectives();
void messages();
void streams();
void graphs();
void lifecycle();
void windows();
void windows_of_processes();
void configured();
void derive();
void deadlocks();

}  // namespace stress

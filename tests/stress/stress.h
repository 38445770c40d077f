// The stress program's tools: NCCL's C API as declared by the list of entry points, ranks as
// threads, and checks that say where they failed.
#pragma once

#include <functional>
#include <random>
#include <string>
#include <vector>

#include "abi/driver_types.h"
#include "hostnccl/api/unsupported.h"

using namespace pynccl::abi;

#include "abi/c_params.inc"
#define FUNCTION(since, result, name, ...) \
  HOSTNCCL_IF_SUPPORTED(name, extern "C" result name(__VA_ARGS__);)
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

// Runs body in one thread per rank.
void in_threads(int nranks, const std::function<void(int rank)>& body);

// The same, with a communicator for each, destroyed afterwards.
void with_world(int nranks, const std::function<void(int rank, ncclComm_t comm)>& body);

// Polls until the communicator is no longer in progress; its state then.
ncclResult_t settle(ncclComm_t comm);

cudaStream_t new_stream();
ncclConfig_t non_blocking();

// The scenarios.
void collectives();
void messages();
void streams();
void graphs();
void lives();
void windows();
void windows_of_processes();
void configured();
void regroup();

}  // namespace stress

// NCCL_CHECK and DRIVER_CHECK throw the exceptions of nccl/failure.h. NCCL_CALL_NOTHROW returns the
// result and never throws, for destructors.
#pragma once

#include <string>

#include "nccl/library.h"

namespace pynccl {

// NCCL's description of the error, for the text of an exception.
std::string failure_text(const Library& library, ncclResult_t result, const char* function,
                         ncclComm_t comm, int rank);
[[noreturn]] void throw_nccl(const Library& library, ncclResult_t result, const char* function,
                             ncclComm_t comm, int rank, const char* file, int line);
[[noreturn]] void throw_driver(const Library& library, CUresult result, const char* function,
                               const char* file, int line);

}  // namespace pynccl

// NCCL_CHECK(library, comm, rank, ncclSend, (arguments...)): calls the function and throws
// NcclFailure unless it succeeds.
#define NCCL_CHECK(library, comm, rank, function, args)                              \
  do {                                                                               \
    const ncclResult_t result_ = (library).nccl<&NcclTable::function>() args;        \
    if (!pynccl::succeeded(result_)) [[unlikely]]                                    \
      throw_nccl((library), result_, #function, (comm), (rank), __FILE__, __LINE__); \
  } while (false)

// NCCL_CALL_NOTHROW(library, ncclCommAbort, (comm)): calls the function and returns its result, or
// ncclInvalidUsage if the library lacks it.
#define NCCL_CALL_NOTHROW(library, function, args) \
  ((library).nccl_table().function ? (library).nccl_table().function args : ncclInvalidUsage)

#define DRIVER_CHECK(library, function, args)                               \
  do {                                                                      \
    const CUresult result_ = (library).driver().function args;              \
    if (result_ != CUDA_SUCCESS) [[unlikely]]                               \
      throw_driver((library), result_, "cu" #function, __FILE__, __LINE__); \
  } while (false)

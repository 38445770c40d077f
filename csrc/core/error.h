// What can go wrong below Python, as C++ exceptions, and the two ways to look at a result:
// NCCL_CHECK throws, and NCCL_RECORD only tells, for destructors. Mistakes in arguments are
// std::invalid_argument, thrown before any call.
#pragma once

#include <stdexcept>
#include <string>

#include "core/table.h"

namespace pynccl {

class Library;

// A call into NCCL that did not return ncclSuccess.
class NcclFailure : public std::runtime_error {
 public:
  NcclFailure(ncclResult_t result, std::string name, int own_rank, const std::string& message)
      : std::runtime_error(message), code(result), function(std::move(name)), rank(own_rank) {}

  ncclResult_t code;
  std::string function;
  int rank;  // of the communicator, or -1
};

// A call into the CUDA driver (or hostnccl's stream calls) that did not return CUDA_SUCCESS.
class DriverFailure : public std::runtime_error {
 public:
  DriverFailure(CUresult result, std::string name, const std::string& message)
      : std::runtime_error(message), code(result), function(std::move(name)) {}

  CUresult code;
  std::string function;
};

// A function that the loaded library does not have.
class MissingFunction : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A library that cannot be loaded, or not beside what is loaded already.
class LibraryNotFound : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A communicator that works in the background answers ncclInProgress.
inline bool good(ncclResult_t result) { return result == ncclSuccess || result == ncclInProgress; }

[[noreturn]] void throw_nccl(const Library& library, ncclResult_t result, const char* function,
                             ncclComm_t comm, int rank, const char* file, int line);
[[noreturn]] void throw_driver(const Library& library, CUresult result, const char* function,
                               const char* file, int line);

}  // namespace pynccl

// NCCL_CHECK(library, comm, rank, ncclSend, (arguments...)): calls and throws unless the result is
// a success.
#define NCCL_CHECK(library, comm, rank, function, args)                              \
  do {                                                                               \
    const ncclResult_t result_ = (library).nccl<&NcclTable::function>() args;        \
    if (!pynccl::good(result_)) [[unlikely]]                                         \
      throw_nccl((library), result_, #function, (comm), (rank), __FILE__, __LINE__); \
  } while (false)

// NCCL_RECORD(library, ncclCommAbort, (comm)): calls and gives the result back; where the function
// is missing, nothing is called and the result is ncclInvalidUsage. For destructors.
#define NCCL_RECORD(library, function, args) \
  ((library).nccl_table().function ? (library).nccl_table().function args : ncclInvalidUsage)

#define DRIVER_CHECK(library, function, args)                               \
  do {                                                                      \
    const CUresult result_ = (library).driver().function args;              \
    if (result_ != CUDA_SUCCESS) [[unlikely]]                               \
      throw_driver((library), result_, "cu" #function, __FILE__, __LINE__); \
  } while (false)

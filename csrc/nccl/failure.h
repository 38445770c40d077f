// The exceptions of the layers below Python. Invalid arguments are std::invalid_argument, thrown
// before any call.
#pragma once

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "nccl/table.h"

namespace pynccl {

// The ranks missing from an operation, and the source of that information: "engine", "store" or
// "RAS".
struct MissingRanks {
  std::vector<int> ranks;
  std::string source;
};

// An NCCL call that failed.
class NcclFailure : public std::runtime_error {
 public:
  NcclFailure(ncclResult_t result, std::string name, int own_rank, const std::string& message,
              std::optional<MissingRanks> missing_ranks = std::nullopt)
      : std::runtime_error(message),
        code(result),
        function(std::move(name)),
        rank(own_rank),
        missing(std::move(missing_ranks)) {}

  ncclResult_t code;
  std::string function;
  int rank;                             // of the communicator, or -1
  std::optional<MissingRanks> missing;  // ncclTimeout: the missing ranks
};

// A failure of queued work, reported by a stream call that itself is valid.
class WorkFailure : public NcclFailure {
 public:
  WorkFailure(ncclResult_t result, std::string name, const std::string& message,
              const void* what_failed)
      : NcclFailure(result, std::move(name), -1, message), origin(what_failed) {}

  const void* origin;  // the handle of the communicator, or of FailedFunctions
};

// An exception from a user function that a stream ran.
class FunctionFailure : public std::runtime_error {
 public:
  FunctionFailure(const std::string& message, std::shared_ptr<void> what_was_thrown)
      : std::runtime_error(message), thrown(std::move(what_was_thrown)) {}

  std::shared_ptr<void> thrown;  // owned by the bindings
};

// A call of the CUDA driver, or a stream call of hostnccl, that did not return CUDA_SUCCESS.
class DriverFailure : public std::runtime_error {
 public:
  DriverFailure(CUresult result, std::string name, const std::string& message)
      : std::runtime_error(message), code(result), function(std::move(name)) {}

  CUresult code;
  std::string function;
};

// A function that the loaded library lacks.
class MissingFunction : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A library that cannot be loaded, or that conflicts with a loaded one.
class LibraryNotFound : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A non-blocking communicator returns ncclInProgress.
inline bool succeeded(ncclResult_t result) {
  return result == ncclSuccess || result == ncclInProgress;
}

}  // namespace pynccl

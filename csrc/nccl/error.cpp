#include "nccl/error.h"

#include <cstring>

namespace pynccl {

std::string failure_text(const Library& library, ncclResult_t result, const char* function,
                         ncclComm_t comm, int rank) {
  const NcclTable& nccl = library.nccl_table();
  std::string text = std::string(function) + " failed";
  if (rank >= 0) text += " on rank " + std::to_string(rank);
  if (nccl.ncclGetErrorString) text += std::string(": ") + nccl.ncclGetErrorString(result);
  if (nccl.ncclGetLastError) {
    const char* last = nccl.ncclGetLastError(comm);
    if (last && *last) text += std::string(": ") + last;
  }
  return text;
}

void throw_nccl(const Library& library, ncclResult_t result, const char* function, ncclComm_t comm,
                int rank, const char* file, int line) {
  throw NcclFailure(result, function, rank,
                    failure_text(library, result, function, comm, rank) + place_text(file, line));
}

void throw_driver(const Library& library, CUresult result, const char* function, const char* file,
                  int line) {
  if (const auto failed = result == CUDA_ERROR_UNKNOWN ? library.failed_work() : std::nullopt) {
    const bool launched = std::strcmp(function, "cuGraphLaunch") == 0;
    const char* what = launched ? "the launch of a graph" : "work queued on the stream";
    throw WorkFailure(
        failed->result, function,
        std::string(what) + " failed: " + failed->text + place_text(file, line, function),
        failed->origin);
  }
  throw driver_failure(library.driver(), result, function, file, line);
}

}  // namespace pynccl

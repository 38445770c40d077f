#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "stress.h"

namespace stress {

void stop(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: failed: %s\n", file, line, what.c_str());
  std::fflush(stderr);
  std::_Exit(1);
}

void expect_result(const char* file, int line, const char* call, unsigned got, unsigned wanted) {
  if (got == wanted) return;
  stop(file, line,
       std::string(call) + " returned " + std::to_string(got) + ", expected " +
           std::to_string(wanted) + "; last error: " + ncclGetLastError(nullptr));
}

void expect_text(const char* file, int line, const std::string& text, const std::string& part) {
  if (text.find(part) == std::string::npos) stop(file, line, "no '" + part + "' in '" + text + "'");
}

ncclUniqueId new_id() {
  ncclUniqueId id;
  OK(ncclGetUniqueId(&id));
  return id;
}

void in_threads(int nranks, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < nranks; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

void with_communicators(int nranks, const std::function<void(int, ncclComm_t)>& body,
                        ncclResult_t failure) {
  const ncclUniqueId id = new_id();
  in_threads(nranks, [&](int rank) {
    ncclComm_t comm;
    OK(ncclCommInitRank(&comm, nranks, id, rank));
    body(rank, comm);
    const ncclResult_t state = state_of(comm);
    const ncclResult_t result = ncclCommDestroy(comm);
    CHECK(result == state || result == failure);
  });
}

ncclResult_t state_of(ncclComm_t comm) {
  for (;;) {
    ncclResult_t state;
    OK(ncclCommGetAsyncError(comm, &state));
    if (state != ncclInProgress) return state;
    pause(1);
  }
}

int32_t sum_over(ncclComm_t comm, int32_t value) {
  issued(comm, ncclAllReduce(&value, &value, 1, ncclInt32, ncclSum, comm, nullptr));
  return value;
}

void issued(ncclComm_t comm, ncclResult_t result) {
  CHECK(result == ncclSuccess || result == ncclInProgress);
  if (result == ncclInProgress) CHECK(state_of(comm) == ncclSuccess);
}

void pause(int milliseconds) {
  std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
}

cudaStream_t new_stream() {
  CUstream stream;
  OK(hostStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
  return stream;
}

ncclConfig_t non_blocking() {
  ncclConfig_t config;
  config.blocking = 0;
  return config;
}

}  // namespace stress

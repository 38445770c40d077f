// Collectives with an ncclCollConfig_t: random paths and streams, launch events that other streams
// query meanwhile, simulated groups in between, and parameters read from all threads.
#include <cstdint>
#include <random>

#include "stress.h"

namespace stress {
namespace {

constexpr const char* kPaths[] = {nullptr, "staged", "direct", "ring"};

void paths_and_events(int rank, ncclComm_t comm) {
  std::mt19937 common(7);  // the same choices on every rank
  const cudaStream_t streams[] = {new_stream(), new_stream(), nullptr};
  CUevent launched;
  OK(hostEventCreate(&launched, CU_EVENT_DISABLE_TIMING));
  std::vector<int64_t> data(30'000, 1);
  int64_t expected = 1;
  for (int i = 0; i < 24; ++i) {
    const cudaStream_t stream = streams[common() % 3];
    ncclCollConfig_t config;
    config.algSelection = kPaths[common() % 4];
    config.forceAlgSelection = 0;  // the direct path may not be available
    config.userProfilerTag = static_cast<uint64_t>(rank);
    config.launchCompletionEvent = launched;
    const bool grouped = common() % 2;
    if (grouped) OK(ncclGroupStart());
    OK(ncclAllReduceConfig(data.data(), data.data(), data.size(), ncclInt64, ncclSum, comm, stream,
                           &config));
    if (grouped) OK(ncclGroupEnd());
    expected *= 3;
    if (i % 5 == rank) {
      OK(hostEventSynchronize(launched));
      OK(hostEventQuery(launched));
    }
    ncclSimInfo_t info;
    OK(ncclGroupStart());
    OK(ncclAllReduce(data.data(), data.data(), data.size(), ncclInt64, ncclSum, comm, stream));
    OK(ncclGroupSimulateEnd(&info));
    CHECK(info.estimatedTime > 0);
  }
  for (const cudaStream_t stream : {streams[0], streams[1]}) OK(hostStreamSynchronize(stream));
  CHECK(data.front() == expected && data.back() == expected);
  for (const cudaStream_t stream : {streams[0], streams[1]}) OK(hostStreamDestroy(stream));
  OK(hostEventDestroy(launched));
}

void parameters() {
  const char** keys;
  int count;
  OK(ncclParamGetAllParameterKeys(&keys, &count));
  for (int i = 0; i < count; ++i) {
    const char* value;
    int length;
    OK(ncclParamGetParameter(keys[i], &value, &length));
    ncclParamHandle_t handle;
    OK(ncclParamBind(&handle, keys[i]));
    char bytes[1024];
    OK(ncclParamGet(handle, bytes, sizeof bytes, &length));
  }
}

void encryption_keys() {
  ncclEncryptionConfig_t config;
  config.mode = NCCL_ENCRYPTION_MODE_PSK;
  config.psk = "a key that all of the ranks share";
  OK(ncclSetEncryption(&config));
  with_communicators(3, paths_and_events);
  config.psk = "too short";
  EXPECT(ncclInvalidArgument, ncclSetEncryption(&config));
  OK(ncclSetEncryption(nullptr));
}

}  // namespace

void configured() {
  in_threads(4, [](int) { parameters(); });
  with_communicators(3, paths_and_events);
  encryption_keys();
}

}  // namespace stress

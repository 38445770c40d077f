#include "driver/record.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <vector>

#include "driver/control.h"

namespace cuda_double {
namespace {

std::atomic<bool> on{false};
std::mutex mutex;
int64_t first = 0;  // the number of calls()[0]; a call may have begun before the last clear

std::vector<RecordedCall>& calls() {
  static auto& all = *new std::vector<RecordedCall>;
  return all;
}

}  // namespace

bool recording() { return on.load(std::memory_order_relaxed); }

int64_t begin_call(const RecordedCall& call) {
  const std::lock_guard lock(mutex);
  calls().push_back(call);
  return first + static_cast<int64_t>(calls().size()) - 1;
}

void end_call(int64_t number, int result) {
  const std::lock_guard lock(mutex);
  if (number >= first) calls()[static_cast<size_t>(number - first)].result = result;
}

}  // namespace cuda_double

using namespace cuda_double;

extern "C" {

void cuda_double_record(int start) {
  const std::lock_guard lock(mutex);
  if (start) {
    first += static_cast<int64_t>(calls().size());
    calls().clear();
  }
  on.store(start != 0);
}

size_t cuda_double_calls(RecordedCall* out, size_t most) {
  const std::lock_guard lock(mutex);
  if (out != nullptr) std::copy_n(calls().begin(), std::min(most, calls().size()), out);
  return calls().size();
}

}  // extern "C"

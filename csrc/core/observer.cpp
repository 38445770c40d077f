#include "core/observer.h"

#include <mutex>

namespace pynccl {
namespace {

std::mutex observers_mutex;

std::vector<CommunicatorObserver*>& observers() {
  static auto& list = *new std::vector<CommunicatorObserver*>;
  return list;
}

}  // namespace

void CommunicatorObservers::add(CommunicatorObserver& observer) {
  const std::lock_guard lock(observers_mutex);
  observers().push_back(&observer);
}

// A copy: an observer may wait for a lock of its own.
std::vector<CommunicatorObserver*> CommunicatorObservers::all() {
  const std::lock_guard lock(observers_mutex);
  return observers();
}

void CommunicatorObservers::before_operation(const std::shared_ptr<Communicator>& communicator,
                                             CUstream stream) {
  for (CommunicatorObserver* observer : all()) observer->before_operation(communicator, stream);
}

void CommunicatorObservers::before_close(const Communicator& communicator, bool aborted) {
  for (CommunicatorObserver* observer : all()) observer->before_close(communicator, aborted);
}

}  // namespace pynccl

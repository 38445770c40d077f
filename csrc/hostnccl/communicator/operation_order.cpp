#include "hostnccl/communicator/operation_order.h"

#include <algorithm>
#include <functional>
#include <thread>
#include <utility>

namespace hostnccl {

void OperationOrder::wait_until_idle() const {
  constexpr auto kPollInterval = std::chrono::milliseconds(1);
  while (running()) std::this_thread::sleep_for(kPollInterval);
}

EnqueueLock::EnqueueLock(std::vector<OperationOrder*> orders) : orders_(std::move(orders)) {
  std::sort(orders_.begin(), orders_.end(), std::less<>());
  orders_.erase(std::unique(orders_.begin(), orders_.end()), orders_.end());
  for (OperationOrder* order : orders_) order->enqueuing_.lock();
}

EnqueueLock::~EnqueueLock() {
  for (OperationOrder* order : orders_) order->enqueuing_.unlock();
}

}  // namespace hostnccl

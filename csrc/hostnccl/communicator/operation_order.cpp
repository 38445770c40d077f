#include "hostnccl/communicator/operation_order.h"

#include <thread>

namespace hostnccl {

void OperationOrder::wait_until_idle() const {
  constexpr auto kPollInterval = std::chrono::milliseconds(1);
  while (running()) std::this_thread::sleep_for(kPollInterval);
}

}  // namespace hostnccl

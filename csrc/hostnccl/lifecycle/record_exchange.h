// An exchange of records between all ranks of a communicator, in the order of its operations: an
// all-gather, so that a rank that calls something else meanwhile is told apart.
#pragma once

#include <vector>

#include "hostnccl/communicator/communicator.h"

namespace hostnccl {

std::vector<ExchangeRecord> exchange(const Ref<Communicator>& comm, Kind kind,
                                     const ExchangeRecord& own, uint32_t sequence);

}  // namespace hostnccl

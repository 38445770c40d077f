// Exchange of one ExchangeRecord per rank, in the order of a communicator's operations.
//
// It is an all-gather, so a rank that makes a different call at the same position gets the error of
// mismatched collectives.
#pragma once

#include <vector>

#include "hostnccl/communicator/communicator.h"

namespace hostnccl {

// kind names the calling function in that error.
std::vector<ExchangeRecord> exchange_records(const Ref<Communicator>& comm, Kind kind,
                                             const ExchangeRecord& own, uint32_t sequence,
                                             const Creation* creation = nullptr);

}  // namespace hostnccl

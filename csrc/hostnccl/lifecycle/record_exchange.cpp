#include "hostnccl/lifecycle/record_exchange.h"

#include "hostnccl/operations/progress_engine.h"

namespace hostnccl {

std::vector<ExchangeRecord> exchange_records(const Ref<Communicator>& comm, Kind kind,
                                             const ExchangeRecord& own, uint32_t sequence,
                                             const Creation* creation) {
  std::vector<ExchangeRecord> all(static_cast<size_t>(comm->nranks()));
  Operation all_gather{kind, abi::ncclUint8};
  all_gather.send = &own;
  all_gather.recv = all.data();
  all_gather.count = sizeof own;
  run_operation(comm, all_gather, sequence, creation);
  return all;
}

}  // namespace hostnccl

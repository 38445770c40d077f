#include "hostnccl/lifecycle/record_exchange.h"

#include "hostnccl/operations/progress_engine.h"

namespace hostnccl {

std::vector<ExchangeRecord> exchange(const Ref<Communicator>& comm, Kind kind,
                                     const ExchangeRecord& own, uint32_t sequence) {
  std::vector<ExchangeRecord> all(static_cast<size_t>(comm->nranks()));
  Operation gather{kind, abi::ncclUint8};
  gather.send = &own;
  gather.recv = all.data();
  gather.count = sizeof own;
  ProgressEngine launch;
  launch.add(comm, gather);
  launch.use_sequence(sequence);
  if (const std::optional<Error> error = launch.run()) throw *error;
  return all;
}

}  // namespace hostnccl

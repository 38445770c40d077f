#include "hostnccl/exchange.h"

#include "hostnccl/launch.h"

namespace hostnccl {

std::vector<Ballot> exchange(const Ref<Communicator>& comm, Kind kind, const Ballot& own,
                             uint32_t ticket) {
  std::vector<Ballot> all(static_cast<size_t>(comm->nranks()));
  Operation gather{kind, abi::ncclUint8};
  gather.send = &own;
  gather.recv = all.data();
  gather.count = sizeof own;
  Launch launch;
  launch.add(comm, gather);
  launch.use_ticket(ticket);
  if (const std::optional<Error> error = launch.run()) throw *error;
  return all;
}

}  // namespace hostnccl

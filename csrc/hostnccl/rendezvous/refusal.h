// What happens after a rendezvous has failed: ranks that come later are told why.
#pragma once

#include <optional>

#include "hostnccl/rendezvous/handshake.h"

namespace hostnccl {

// Tells them on a thread, for some seconds. Every rank that has failed does so, but for one that
// gave up itself, since the processes of others may end. It listens where no rank does; a rank that
// listens, because it came later and waits for the others, is told. listener: of the host.
void refuse_late_ranks(const RendezvousKey& key, const Error& reason,
                       std::optional<JoinListener> listener = {});

// Tells the ranks that are in the rendezvous of a key now, if there are any. For a rank that gives
// up before it has come there.
void tell_host(const RendezvousKey& key, const Error& reason);

}  // namespace hostnccl

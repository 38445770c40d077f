// Refusal of late ranks after a failed rendezvous.
#pragma once

#include <optional>

#include "hostnccl/rendezvous/handshake.h"

namespace hostnccl {

// Starts a thread that reports the reason to late ranks for some seconds. Every failed rank does
// so, except one that gave up itself, because the processes of the others may end. It listens if no
// other rank does. If a late rank listens, as the host that waits for the others, it reports the
// reason to that rank. listener: that of a host.
void refuse_late_ranks(const RendezvousKey& key, const Error& reason,
                       std::optional<JoinListener> listener = {});

// Reports the reason to the ranks that are currently in the rendezvous of a key, if there are any.
// For a rank that gives up before it has joined.
void refuse_host(const RendezvousKey& key, const Error& reason);

}  // namespace hostnccl

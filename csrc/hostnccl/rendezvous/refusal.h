// Refusal of late ranks after a failed rendezvous: they are told the reason.
#pragma once

#include <optional>

#include "hostnccl/rendezvous/handshake.h"

namespace hostnccl {

// Tells late ranks the reason on a thread, for some seconds. Every failed rank does so, except one
// that gave up itself, since the processes of others may end. It listens if no other rank does; a
// rank that listens, because it came later and waits for the others, is told. listener: of the
// host.
void refuse_late_ranks(const RendezvousKey& key, const Error& reason,
                       std::optional<JoinListener> listener = {});

// Tells the ranks that are currently in the rendezvous of a key, if there are any. For a rank that
// gives up before it has joined.
void tell_host(const RendezvousKey& key, const Error& reason);

}  // namespace hostnccl

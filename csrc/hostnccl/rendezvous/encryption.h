// ncclSetEncryption: a key that all ranks of a communicator must share. NCCL encrypts its sockets
// with it. This engine has no network traffic to encrypt; it only refuses ranks with another key.
#pragma once

#include "hostnccl/base/process.h"
#include "hostnccl/base/secrets.h"
#include "hostnccl/base/unique_id.h"

namespace hostnccl {

// Sets the key of communicators that this process creates from now on; none if config is null.
void set_encryption(const pynccl::abi::ncclEncryptionConfig_t* config);

// Proof that a rank knows the key: HMAC-SHA-256 of the rendezvous, the rank and its process. All
// zeros without a key. The key cannot be recovered from it.
using KeyProof = Proof;
KeyProof prove_key(const RendezvousKey& rendezvous, int rank, const ProcessId& process);

}  // namespace hostnccl

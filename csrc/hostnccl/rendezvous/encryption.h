// Encryption keys (ncclSetEncryption): all ranks of a communicator must use the same key. NCCL
// encrypts its sockets with it. This engine has no network traffic. It only rejects ranks with
// another key.
#pragma once

#include "hostnccl/base/keys.h"
#include "hostnccl/base/process.h"

namespace hostnccl {

// Sets the key of communicators that this process creates from now on. Null: no key.
void set_encryption(const pynccl::abi::ncclEncryptionConfig_t* config);

// Proof that a rank knows the key: HMAC-SHA-256 of the rendezvous, the rank and its process, which
// does not reveal the key. Zeros if there is no key.
using KeyProof = Proof;
KeyProof prove_key(const RendezvousKey& rendezvous, int rank, const ProcessId& process);

}  // namespace hostnccl

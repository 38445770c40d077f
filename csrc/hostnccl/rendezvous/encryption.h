// ncclSetEncryption: NCCL encrypts its sockets with a key that all ranks share. Here nothing is on
// a wire; what remains of it is that ranks without the same key do not meet.
#pragma once

#include "hostnccl/base/process.h"
#include "hostnccl/base/sha256.h"
#include "hostnccl/base/unique_id.h"

namespace hostnccl {

// For the communicators that this process makes from now on. config may be null: no key.
void set_encryption(const pynccl::abi::ncclEncryptionConfig_t* config);

// That a rank of a meeting knows the key, which cannot be read from it; all zeros without a key.
using KeyProof = Sha256::Digest;
KeyProof prove_key(const RendezvousName& meeting, int rank, const ProcessId& process);

}  // namespace hostnccl

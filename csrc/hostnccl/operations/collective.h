// How a collective moves its data. ProgressEngine runs the collectives: see run_collective().
#pragma once

#include "hostnccl/communicator/communicator.h"

namespace hostnccl {

// How a call moves data, for its threshold.
Pattern pattern_of(Kind kind);

// The bytes that a rank contributes to a call. Its threshold applies to them.
size_t contribution_of(const Operation& operation, int nranks);

// The path of a call between several ranks whose buffers lie in no window: Staged or Direct.
Path path_of(const Communicator& comm, const Operation& operation);

// The elements of a block that one round of the staged path moves.
size_t staged_chunk(const Operation& operation, int nranks);

}  // namespace hostnccl

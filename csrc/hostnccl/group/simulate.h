// An estimate of the time that operations take, for ncclGroupSimulateEnd.
#pragma once

#include <vector>

namespace hostnccl {

struct PendingOperation;

// Microseconds for all operations one after the other, from a model of latency and bandwidth. Its
// constants were measured on one machine (simulate.cpp). It ignores other load.
double estimate_microseconds(const std::vector<PendingOperation>& operations);

}  // namespace hostnccl

// Estimates the time that operations take, for ncclGroupSimulateEnd.
#pragma once

#include <vector>

namespace hostnccl {

struct PendingOperation;

// Microseconds for all operations in sequence, from a model of latency and bandwidth whose
// constants were measured on one machine (simulate.cpp). It ignores other load.
double estimate_microseconds(const std::vector<PendingOperation>& operations);

}  // namespace hostnccl

// How long operations will take, without running them.
#pragma once

#include <vector>

namespace hostnccl {

struct Item;

// Microseconds for all of them, one after the other, on machines like the one that the constants
// were measured on. It grows with the bytes and with the ranks, and knows nothing of other work.
double estimate(const std::vector<Item>& items);

}  // namespace hostnccl

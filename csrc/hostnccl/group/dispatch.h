// Brings operations to the threads that run them: the calling thread, or those of their streams.
#pragma once

#include <vector>

namespace hostnccl {

class ProgressEngine;
struct Item;

// here: for what runs in the calling thread.
void dispatch(const Item& item, ProgressEngine& here);

// The items of a group. What shares a communicator or a stream is one launch. A launch on several
// streams runs on one of them, between events; a launch that touches the calling thread runs there,
// after what its other streams were given before. On streams that are capturing it is recorded.
void dispatch(const std::vector<Item>& items, ProgressEngine& here);

}  // namespace hostnccl

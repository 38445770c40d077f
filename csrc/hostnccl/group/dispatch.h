// Dispatch: assigns operations to progress engines and starts the engines on their streams or in
// the calling thread.
#pragma once

#include <vector>

namespace hostnccl {

class ProgressEngine;
struct PendingOperation;

// Starts one operation. inline_engine runs it if its stream is the calling thread.
void dispatch(const PendingOperation& operation, ProgressEngine& inline_engine);

// Starts the operations of a group. Those that share a communicator or a stream, directly or
// through others, are one component and run in one engine, so that no order of calls within a group
// can deadlock.
//  - A component on several streams runs on the first of them. Events order it after the work of
//    the others, and their later work after it.
//  - A component that includes the calling thread runs there, after the work of its streams.
//  - A component whose streams are capturing becomes one node of the graph.
void dispatch(const std::vector<PendingOperation>& operations, ProgressEngine& inline_engine);

}  // namespace hostnccl

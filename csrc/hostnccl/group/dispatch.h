// Dispatch: assigns operations to progress engines and starts the engines on their streams or in
// the calling thread.
#pragma once

#include <vector>

#include "hostnccl/communicator/communicator.h"
#include "hostnccl/streams/event.h"
#include "hostnccl/streams/stream.h"

namespace hostnccl {

class ProgressEngine;

// An operation of a group, or a single one, with checked arguments, before it is started.
struct PendingOperation {
  Ref<Communicator> comm;
  Operation operation;
  Ref<Stream> stream;       // null: the calling thread
  Ref<Event> launch_event;  // recorded when the operation begins (launchCompletionEvent), or null
  Ref<Window> window;       // the destination of a put, else null
};

// Starts one operation. inline_engine runs it if its stream is the calling thread.
void dispatch(const PendingOperation& operation, ProgressEngine& inline_engine);

// Starts the operations of a group. Those that share a communicator or a stream, directly or
// through others, form a component and run in one engine, so no order of calls within a group can
// deadlock.
//  - A component on several streams runs on the first of them. Events order it after the work of
//  the
//    others, and their later work after it.
//  - A component that includes the calling thread runs there, after the work of its streams.
//  - A component whose streams are capturing becomes one node of the graph.
void dispatch(const std::vector<PendingOperation>& operations, ProgressEngine& inline_engine);

}  // namespace hostnccl

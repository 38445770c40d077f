// PendingOperation: an operation of a group, or a single one, before it is started.
#pragma once

#include "hostnccl/communicator/communicator.h"
#include "hostnccl/streams/event.h"
#include "hostnccl/streams/stream.h"

namespace hostnccl {

// An operation with its arguments checked, to be started on its stream.
struct PendingOperation {
  Ref<Communicator> comm;
  Operation operation;
  Ref<Stream> stream;       // null: the calling thread
  Ref<Event> launch_event;  // recorded when the operation begins (launchCompletionEvent), or null
  Ref<Window> window;       // the destination of a put, else null
};

}  // namespace hostnccl

// Operations on streams: from the caller's stream to the engine's, with the double's checks around
// them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "driver/memory.h"
#include "nccl/communicator.h"

namespace cuda_double {

// The arguments of an operation.
struct Arguments {
  const char* function = "";
  const void* send = nullptr;
  void* recv = nullptr;
  size_t count = 0;
  ncclDataType_t dtype = ncclInt8;
  ncclRedOp_t op = ncclSum;
  int peer = -1;  // root or peer
};

// An operation queued on a stream. Begin before the engine's call, end after it.
class Operation {
 public:
  Operation(CommunicatorRef communicator, StreamRef stream, const Arguments& arguments);

  const CommunicatorRef& communicator() const { return communicator_; }
  const StreamRef& stream() const { return stream_; }
  bool message() const { return message_; }  // a send or a receive
  bool connects() const;                     // whether its ranks are not connected yet
  void connect() const;                      // records that this rank connects
  // Asks the tuner, reports a kernel for each communicator to the profiler, and queues a function
  // after each operation on its stream: it checks memory, and spins like a kernel whose peer is
  // dead.
  static void issue(std::span<Operation> operations);
  void cancel();
  void simulate() const;

 private:
  void finish();

  CommunicatorRef communicator_;
  StreamRef stream_;
  bool message_;
  bool sends_;
  bool collective_;
  int peer_;
  std::shared_ptr<PluginTask> task_;
  std::shared_ptr<MemoryUse> use_;  // none in a capture
};

// The group of the calling thread.
struct Group {
  int depth = 0;
  int blocking = -1;    // of the communicators created in it; -1: none yet
  bool failed = false;  // a call was rejected
  std::vector<Operation> operations;
  std::vector<CommunicatorRef> communicators;  // counted as in a call until the group ends

  struct Creation {
    ncclComm_t* out;
    CommunicatorRef communicator;
    CommunicatorRef parent;  // a non-blocking parent, which writes the handle later
    bool child;              // of a parent
  };
  std::vector<Creation> creations;

  std::weak_ptr<Communicator> created;  // the last non-blocking one outside a group

  // Communicators that have not set up one-sided operations yet.
  std::vector<CommunicatorRef> one_sided;

  static Group& of_this_thread();
  ncclResult_t set_up_one_sided();
  ncclResult_t join(bool comm_blocking);  // a creation
  static void fail();                     // a call was rejected
  static void fail_engine();              // the engine's group has failed
  bool creates() const;                   // the last creation is in progress
  bool begin_progress();                  // whether a communicator of its operations is in progress
  bool connect() const;                   // false if its operations must not be issued
  ncclResult_t settle_creations();        // an error if two ranks use one GPU
  ncclResult_t clear();
};

}  // namespace cuda_double

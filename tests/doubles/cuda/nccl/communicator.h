// A communicator of the double: the callers' handle, based on the engine's.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "driver/stream.h"
#include "nccl/peers.h"
#include "nccl/plugins.h"
#include "nccl/table.h"

namespace cuda_double {

struct Communicator {
  ncclComm_t engine = nullptr;  // the engine writes it; null until then
  int device = 0;
  int rank = -1;
  int nranks = 0;
  bool blocking = true;
  std::string key;  // the same on all ranks; empty if peers are not tracked
  std::unique_ptr<Peers> peers;
  Plugins plugins;
  int derived = 0;             // communicators derived from it, in the same order on each rank
  std::atomic<int> calls{0};   // calls in progress
  std::atomic<int> graphs{0};  // graphs, executables and launches with its operations
  // Operations and graph launches on streams, including those queued behind other work. NCCL's own
  // streams are ordered after them.
  std::atomic<int> pending{0};
  std::atomic<bool> aborted{false};
  std::atomic<bool> revoked{false};
  std::atomic<bool> finalized{false};  // or revoked, which counts as finalized
  std::atomic<bool> freed{false};
  // The error that its network has noticed, which nothing clears (NCCL 2.28.9, init.cc:2711).
  std::atomic<ncclResult_t> network{ncclSuccess};
  // Of a non-blocking communicator: the permanent error of a rejected call.
  std::atomic<ncclResult_t> refused{ncclSuccess};
  // Of a non-blocking communicator: an operation is in progress until the state is queried.
  std::atomic<bool> issuing{false};
  // In progress forever, after a group with operations of non-blocking communicators.
  std::atomic<bool> stuck{false};
  std::atomic<bool> called{false};  // a collective was called
  std::atomic<bool> creation_failed{false};
  std::mutex mutex;                              // of begun and unanswered
  std::vector<std::pair<int, bool>> begun;       // messages, by peer and whether this rank sends
  std::vector<std::pair<int, bool>> unanswered;  // the messages that still connect
  bool had_messages = false;                     // a group with messages has ended
  // Calls in progress that create a child of a non-blocking communicator: until the child's handle
  // is written, and for a while longer.
  std::atomic<int> followed{0};

  ncclComm_t handle() { return reinterpret_cast<ncclComm_t>(this); }
  // Called before its ranks join.
  void enter(int size, int own_rank);
  // Reads its size and rank once the engine knows them. Fails if two ranks use one GPU.
  void learn();
  void connect(int peer);
  // Notes the first collective, or the first message to or from a peer in a direction.
  void begin_collective();
  void begin_message(int peer, bool sends);
  bool has_begun(int peer, bool sends);
  ncclResult_t state() const;  // the engine's
  bool failed() const;         // whether the engine has reported an asynchronous error
  void wait_while_in_progress() const;
  bool busy();  // non-blocking: an operation or the creation of a child is in progress
  // Non-blocking: the error of a rejected call or of a call in progress, else success.
  ncclResult_t unready();
  // Called after operations, with or without messages. Whether they are in progress.
  bool begin_progress(bool messages);
  // The first collective (from 2.24 on) and the first message between two ranks in each direction
  // connect their ranks until these have called theirs.
  bool connects();
  // A blocking one waits while it connects. False if it was aborted or revoked meanwhile.
  bool wait_connected();
  // Records that a call was rejected, and returns its result.
  ncclResult_t refuse(ncclResult_t result);
  void wait_for_streams() const;
  void wait_for_graphs() const;
};
using CommunicatorRef = std::shared_ptr<Communicator>;

// Whether kernels do not notice the death of a peer, as in NCCL.
bool dead_peers_spin();

// Two ranks on one GPU are rejected unless they have different NCCL_HOSTIDs or, from 2.30 on,
// NCCL_MULTI_RANK_GPU_ENABLE is set. ncclCommInitAll ignores NCCL_HOSTID.
bool may_share_gpus();

CommunicatorRef find_communicator(ncclComm_t handle);  // null if it is not one
void publish(const CommunicatorRef& communicator);
void withdraw(ncclComm_t handle);

}  // namespace cuda_double

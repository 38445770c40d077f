// A communicator of the double: the handle that callers have, over the engine's.
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
#include "nccl/table.h"

namespace cuda_double {

struct Communicator {
  ncclComm_t engine = nullptr;  // the engine writes it; null until then
  int device = 0;
  int rank = -1;
  int nranks = 0;
  bool blocking = true;
  std::string key;  // the same on all ranks; empty where peers are not followed
  std::unique_ptr<Peers> peers;
  int derived = 0;             // communicators made of it, on each rank in the same order
  std::atomic<int> calls{0};   // under way
  std::atomic<int> graphs{0};  // that have its operations, with executables and launches
  // Operations and launches of graphs on streams, also those behind other work: NCCL's own streams
  // come after them.
  std::atomic<int> pending{0};
  std::atomic<bool> aborted{false};
  std::atomic<bool> revoked{false};
  std::atomic<bool> finalized{false};  // finalize was called, or a revocation, which counts as one
  std::atomic<bool> freed{false};
  // Of a non-blocking communicator: the error of a refused call, for good.
  std::atomic<ncclResult_t> refused{ncclSuccess};
  // Of a non-blocking communicator: an operation is in progress until the state is asked for.
  std::atomic<bool> issuing{false};
  std::atomic<bool> stuck{false};   // in progress for good, after a group with non-blocking ones
  std::atomic<bool> called{false};  // a collective
  std::atomic<bool> creation_failed{false};
  std::mutex mutex;                              // of begun and unanswered
  std::vector<std::pair<int, bool>> begun;       // messages: peers, and whether it sends
  std::vector<std::pair<int, bool>> unanswered;  // those of them that connect
  bool had_messages = false;                     // a group with messages has ended
  std::atomic<int> followed{0};                  // children whose handles are still to be written
  std::weak_ptr<Communicator> child;             // the last one, of a non-blocking communicator
  std::chrono::steady_clock::time_point child_ready{};

  ncclComm_t handle() { return reinterpret_cast<ncclComm_t>(this); }
  // Before its ranks join.
  void enter(int size, int own_rank);
  // Its number and rank from the engine, once that knows them. Two ranks on one GPU fail it.
  void learn();
  void connect(int peer);
  // Notes the first collective, or the first message to or from a peer in a direction.
  void begin_collective();
  void begin_message(int peer, bool sends);
  bool has_begun(int peer, bool sends);
  ncclResult_t state() const;  // the engine's
  bool failed() const;         // has an asynchronous error, as the engine sees it
  bool busy();  // non-blocking: an operation, or the making of a child, is in progress
  // Non-blocking: an error of a refused call, or that another one is in progress; else success.
  ncclResult_t unready();
  // After operations, with messages or without: whether they are in progress.
  bool begin_progress(bool messages);
  bool connects();  // first operations do, until the other ranks have called theirs
  // A blocking one waits while it connects. False where it was aborted or revoked meanwhile.
  bool wait_connected();
  // Notes that a call was refused, and returns its result.
  ncclResult_t refuse(ncclResult_t result);
  void wait_for_streams() const;
  void wait_for_graphs() const;
  bool makes_child();  // whether the call that makes the last child is under way
};
using CommunicatorRef = std::shared_ptr<Communicator>;

bool may_share_gpus();

CommunicatorRef find_communicator(ncclComm_t handle);  // null: it is not one
void publish(const CommunicatorRef& communicator);
CommunicatorRef withdraw(ncclComm_t handle);

}  // namespace cuda_double

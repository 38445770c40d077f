// Messages of a rendezvous. Each is one record of a record socket.
#pragma once

#include <bitset>
#include <optional>
#include <string>

#include "hostnccl/base/error.h"
#include "hostnccl/base/fd.h"
#include "hostnccl/base/process.h"
#include "hostnccl/base/record_socket.h"
#include "hostnccl/base/unique_id.h"
#include "hostnccl/rendezvous/encryption.h"
#include "hostnccl/segment/rank_state.h"

namespace hostnccl {

using RankSet = std::bitset<kMaxRanks>;

struct JoinRequest {
  char magic[8];  // this and protocol keep their offsets in every version
  uint32_t protocol;
  int32_t nranks;
  int32_t rank;
  ProcessId process;
  KeyProof key;
};

JoinRequest make_join_request(const RendezvousName& name, int nranks, int rank);
bool is_join_request(const JoinRequest& request);

enum class ReplyKind : uint32_t { Progress, Accepted, Refused };

struct Reply {
  ReplyKind kind;
  abi::ncclResult_t code;  // Refused
  int32_t host_rank;
  RankSet joined;
  char text[1024];  // Refused

  static Reply refusal(const Error& error);
};

// A socket bound to the name; empty if the name is bound already.
Fd try_bind(const RendezvousName& name);

// A connection to the host of the name; empty if there is none.
Fd try_connect(const RendezvousName& name);

ProcessId peer_process(int fd);
bool peer_is_same_user(int fd);

bool send_join_request(int fd, const JoinRequest& request);

// try_send_reply() drops the reply if the receiver's queue is full; send_reply() waits some
// seconds.
void try_send_reply(int fd, const Reply& reply);
void send_reply(int fd, const Reply& reply, int passed_fd = -1);

Received receive_join_request(int fd, JoinRequest& request);
Received receive_reply(int fd, Reply& reply, Fd& passed_fd);

}  // namespace hostnccl

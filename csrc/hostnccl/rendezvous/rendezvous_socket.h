// The messages of a rendezvous, over sockets that carry records: one message, one record.
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

using Arrivals = std::bitset<kMaxRanks>;

struct JoinRequest {
  char magic[8];      // these two fields stay where they are for ever
  uint32_t protocol;  //
  int32_t nranks;
  int32_t rank;
  ProcessId process;
  KeyProof key;
};

JoinRequest make_join_request(const RendezvousName& name, int nranks, int rank);
bool is_join_request(const JoinRequest& join_request);

enum class Answer : uint32_t { Progress, Accepted, Refused };

struct Reply {
  Answer answer;
  abi::ncclResult_t code;  // Refused
  int32_t host_rank;
  Arrivals arrivals;
  char text[1024];  // Refused

  static Reply refusal(const Error& error);
};

// The socket bound under the name, or none if somebody else has bound it.
Fd try_to_host(const RendezvousName& name);

// A connection to whoever hosts the name, or none if nobody does.
Fd try_to_join(const RendezvousName& name);

ProcessId peer_process(int fd);
bool peer_is_same_user(int fd);

bool send_join_request(int fd, const JoinRequest& join_request);

// News may be dropped when the receiver is slow to read; an answer is given some seconds.
void send_news(int fd, const Reply& reply);
void send_answer(int fd, const Reply& reply, int passed_fd = -1);

Received receive_join_request(int fd, JoinRequest& join_request);
Received receive_reply(int fd, Reply& reply, Fd& passed_fd);

}  // namespace hostnccl

#include "hostnccl/rendezvous/rendezvous_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace hostnccl {
namespace {

constexpr char kMagic[8] = {'h', 'o', 's', 't', 'n', 'c', 'c', 'l'};
constexpr int kBacklog = 4096;

ucred credentials(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) fail_errno("SO_PEERCRED");
  return peer;
}

}  // namespace

JoinRequest make_join_request(const RendezvousName& name, int nranks, int rank) {
  JoinRequest request{};
  std::memcpy(request.magic, kMagic, sizeof kMagic);
  request.protocol = kProtocol;
  request.nranks = nranks;
  request.rank = rank;
  request.process = this_process();
  request.key = prove_key(name, rank, request.process);
  return request;
}

bool is_join_request(const JoinRequest& request) {
  return std::memcmp(request.magic, kMagic, sizeof kMagic) == 0;
}

Reply Reply::refusal(const Error& error) {
  Reply reply{};
  reply.kind = ReplyKind::Refused;
  reply.code = error.code();
  const size_t length = std::min(error.text().size(), sizeof reply.text - 1);
  std::memcpy(reply.text, error.text().data(), length);
  return reply;
}

Fd try_bind(const RendezvousName& name) {
  Fd fd = make_record_socket(SOCK_SEQPACKET);
  const SocketName address(name);
  if (bind(fd.get(), address.get(), address.length()) != 0) {
    if (errno == EADDRINUSE) return {};
    fail_errno("bind of the rendezvous");
  }
  if (listen(fd.get(), kBacklog) != 0) fail_errno("listen");
  return fd;
}

Fd try_connect(const RendezvousName& name) {
  Fd fd = make_record_socket(SOCK_SEQPACKET);
  const SocketName address(name);
  if (connect(fd.get(), address.get(), address.length()) == 0) return fd;
  // No host, a host that does not listen yet, or a full backlog.
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return {};
  fail_errno("connect to the rendezvous");
}

ProcessId peer_process(int fd) { return process_of(credentials(fd).pid); }

bool peer_is_same_user(int fd) { return credentials(fd).uid == geteuid(); }

bool send_join_request(int fd, const JoinRequest& request) {
  return send(fd, &request, sizeof request, MSG_NOSIGNAL) == ssize_t(sizeof request);
}

void try_send_reply(int fd, const Reply& reply) { send_record(fd, &reply, sizeof reply, -1); }

void send_reply(int fd, const Reply& reply, int passed_fd) {
  constexpr int kPollMs = 50;
  for (int tries = 0; tries < 100; ++tries) {
    if (send_record(fd, &reply, sizeof reply, passed_fd) || errno != EAGAIN) return;
    pollfd wait{fd, POLLOUT, 0};
    poll(&wait, 1, kPollMs);
  }
}

Received receive_join_request(int fd, JoinRequest& request) {
  request = {};
  return receive_record(fd, &request, sizeof request, nullptr);
}

Received receive_reply(int fd, Reply& reply, Fd& passed_fd) {
  reply = {};
  return receive_record(fd, &reply, sizeof reply, &passed_fd);
}

}  // namespace hostnccl

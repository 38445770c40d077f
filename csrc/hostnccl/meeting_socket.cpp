#include "hostnccl/meeting_socket.h"

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

Hello make_hello(const MeetingName& name, int nranks, int rank) {
  Hello hello{};
  std::memcpy(hello.magic, kMagic, sizeof kMagic);
  hello.protocol = kProtocol;
  hello.nranks = nranks;
  hello.rank = rank;
  hello.process = this_process();
  hello.key = prove_key(name, rank, hello.process);
  return hello;
}

bool is_hello(const Hello& hello) { return std::memcmp(hello.magic, kMagic, sizeof kMagic) == 0; }

Reply Reply::refusal(const Error& error) {
  Reply reply{};
  reply.answer = Answer::Refused;
  reply.code = error.code();
  const size_t length = std::min(error.text().size(), sizeof reply.text - 1);
  std::memcpy(reply.text, error.text().data(), length);
  return reply;
}

Fd try_to_host(const MeetingName& name) {
  Fd fd = make_record_socket(SOCK_SEQPACKET);
  const SocketName address(name);
  if (bind(fd.get(), address.get(), address.length()) != 0) {
    if (errno == EADDRINUSE) return {};
    fail_errno("bind of the rendezvous");
  }
  if (listen(fd.get(), kBacklog) != 0) fail_errno("listen");
  return fd;
}

Fd try_to_join(const MeetingName& name) {
  Fd fd = make_record_socket(SOCK_SEQPACKET);
  const SocketName address(name);
  if (connect(fd.get(), address.get(), address.length()) == 0) return fd;
  // Nobody there, bound but not listening yet, or more at once than the backlog holds.
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return {};
  fail_errno("connect to the rendezvous");
}

ProcessId peer_process(int fd) { return process_of(credentials(fd).pid); }

bool peer_is_same_user(int fd) { return credentials(fd).uid == geteuid(); }

bool send_hello(int fd, const Hello& hello) {
  return send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == ssize_t(sizeof hello);
}

void send_news(int fd, const Reply& reply) { send_record(fd, &reply, sizeof reply, -1); }

void send_answer(int fd, const Reply& reply, int passed_fd) {
  constexpr int kPollMs = 50;
  for (int tries = 0; tries < 100; ++tries) {
    if (send_record(fd, &reply, sizeof reply, passed_fd) || errno != EAGAIN) return;
    pollfd wait{fd, POLLOUT, 0};
    poll(&wait, 1, kPollMs);
  }
}

Received receive_hello(int fd, Hello& hello) {
  hello = {};
  return receive_record(fd, &hello, sizeof hello, nullptr);
}

Received receive_reply(int fd, Reply& reply, Fd& passed_fd) {
  reply = {};
  return receive_record(fd, &reply, sizeof reply, &passed_fd);
}

}  // namespace hostnccl

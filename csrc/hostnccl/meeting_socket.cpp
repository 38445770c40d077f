#include "hostnccl/meeting_socket.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

namespace hostnccl {
namespace {

constexpr char kMagic[8] = {'h', 'o', 's', 't', 'n', 'c', 'c', 'l'};
constexpr int kBacklog = 4096;

struct Address {
  sockaddr_un address{};
  socklen_t length;

  explicit Address(const MeetingName& name) {
    address.sun_family = AF_UNIX;
    const std::string text = "hostnccl-" + to_hex(name);
    std::memcpy(address.sun_path + 1, text.data(), text.size());  // a first zero byte: no file
    length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address); }
};

Fd make_socket() {
  Fd fd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) fail_errno("socket");
  return fd;
}

ucred credentials(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) fail_errno("SO_PEERCRED");
  return peer;
}

Received receive(int fd, void* message, size_t size, Fd* passed_fd) {
  iovec part{message, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const ssize_t length = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
  if (length < 0 && (errno == EAGAIN || errno == EINTR)) return Received::Nothing;
  if (length <= 0) return Received::Closed;
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    int received;
    std::memcpy(&received, CMSG_DATA(item), sizeof received);
    Fd owned(received);
    if (passed_fd != nullptr) *passed_fd = std::move(owned);
  }
  return Received::Message;
}

bool send_reply(int fd, const Reply& reply, int passed_fd) {
  iovec part{const_cast<Reply*>(&reply), sizeof reply};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (passed_fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(item), &passed_fd, sizeof passed_fd);
  }
  return sendmsg(fd, &header, MSG_NOSIGNAL) == ssize_t(sizeof reply);
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
  Fd fd = make_socket();
  const Address address(name);
  if (bind(fd.get(), address.get(), address.length) != 0) {
    if (errno == EADDRINUSE) return {};
    fail_errno("bind of the rendezvous");
  }
  if (listen(fd.get(), kBacklog) != 0) fail_errno("listen");
  return fd;
}

Fd try_to_join(const MeetingName& name) {
  Fd fd = make_socket();
  const Address address(name);
  if (connect(fd.get(), address.get(), address.length) == 0) return fd;
  // Nobody there, bound but not listening yet, or more at once than the backlog holds.
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return {};
  fail_errno("connect to the rendezvous");
}

ProcessId peer_process(int fd) { return process_of(credentials(fd).pid); }

bool peer_is_same_user(int fd) { return credentials(fd).uid == geteuid(); }

bool send_hello(int fd, const Hello& hello) {
  return send(fd, &hello, sizeof hello, MSG_NOSIGNAL) == ssize_t(sizeof hello);
}

void send_news(int fd, const Reply& reply) { send_reply(fd, reply, -1); }

void send_answer(int fd, const Reply& reply, int passed_fd) {
  constexpr int kPollMs = 50;
  for (int tries = 0; tries < 100; ++tries) {
    if (send_reply(fd, reply, passed_fd) || errno != EAGAIN) return;
    pollfd wait{fd, POLLOUT, 0};
    poll(&wait, 1, kPollMs);
  }
}

Received receive_hello(int fd, Hello& hello) {
  hello = {};
  return receive(fd, &hello, sizeof hello, nullptr);
}

Received receive_reply(int fd, Reply& reply, Fd& passed_fd) {
  reply = {};
  return receive(fd, &reply, sizeof reply, &passed_fd);
}

}  // namespace hostnccl

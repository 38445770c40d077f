#include "hostnccl/base/record_socket.h"

#include <pthread.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <mutex>
#include <string>

#include "hostnccl/base/error.h"
#include "hostnccl/base/thread.h"

namespace hostnccl {
namespace {

constexpr int kBacklog = 4096;
constexpr int kMaxOthers = 256;  // connections of other users that one call closes

// The descriptors of all sockets. A forking thread owns the mutex, so that its child knows them.
struct Sockets {
  std::mutex mutex;
  std::list<int> descriptors;
};

void close_in_child() {
  auto& all = immortal<Sockets>();
  for (int& fd : all.descriptors) {
    if (fd >= 0) close(fd);
    fd = -1;  // the forking thread may own one
  }
  all.mutex.unlock();
}

[[maybe_unused]] const int fork_handlers =
    pthread_atfork([] { immortal<Sockets>().mutex.lock(); },
                   [] { immortal<Sockets>().mutex.unlock(); }, &close_in_child);

Socket make_socket() {
  Socket made([] { return socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0); });
  if (!made) fail_errno("socket");
  return made;
}

ucred credentials(int fd) {
  ucred peer{};
  socklen_t length = sizeof peer;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) fail_errno("SO_PEERCRED");
  return peer;
}

// Takes ownership of the descriptors of a message, of which at most one was requested.
void take_descriptors(msghdr& header, Fd& passed) {
  for (cmsghdr* item = CMSG_FIRSTHDR(&header); item; item = CMSG_NXTHDR(&header, item)) {
    if (item->cmsg_level != SOL_SOCKET || item->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (item->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int received;
      std::memcpy(&received, CMSG_DATA(item) + i * sizeof received, sizeof received);
      Fd owned(received);
      if (count == 1) passed = std::move(owned);
    }
  }
}

}  // namespace

// Memory is allocated and freed without the mutex: a fork may lock the allocator first.
Socket::Socket(const std::function<int()>& open) {
  std::list<int> own{-1};
  auto& all = immortal<Sockets>();
  const std::lock_guard lock(all.mutex);
  own.front() = open();
  all.descriptors.splice(all.descriptors.begin(), own);
  entry_ = all.descriptors.begin();
}

Socket::~Socket() {
  if (!entry_) return;
  std::list<int> own;
  auto& all = immortal<Sockets>();
  const std::lock_guard lock(all.mutex);
  own.splice(own.begin(), all.descriptors, *entry_);
  if (own.front() >= 0) close(own.front());
}

SocketName::SocketName(const RendezvousKey& key) {
  constexpr size_t kHashed = 16;  // bytes of the hash in the name
  const Proof hash = hmac(key, bytes_of("socket"));
  std::string text = "hostnccl-";
  for (size_t i = 0; i < kHashed; ++i) text += format("%02x", hash[i]);
  address_.sun_family = AF_UNIX;
  std::memcpy(address_.sun_path + 1, text.data(), text.size());  // the zero makes it abstract
  length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
}

Socket try_bind(const SocketName& name) {
  Socket listener = make_socket();
  if (bind(listener.get(), name.get(), name.length()) != 0) {
    if (errno == EADDRINUSE) return {};
    fail_errno("bind of a socket");
  }
  if (listen(listener.get(), kBacklog) != 0) fail_errno("listen");
  return listener;
}

Socket try_connect(const SocketName& name) {
  Socket connection = make_socket();
  if (connect(connection.get(), name.get(), name.length()) == 0) return connection;
  // No listener yet, or no longer, or a full queue.
  if (errno == ECONNREFUSED || errno == EAGAIN || errno == EINTR) return {};
  fail_errno("connect to the socket of another rank");
}

Socket try_accept(int listener) {
  for (int others = 0; others < kMaxOthers; ++others) {
    Socket accepted(
        [=] { return accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK); });
    if (!accepted) {
      if (errno == EMFILE || errno == ENFILE) fail_errno("accept of a connection");
      return {};
    }
    if (peer_is_same_user(accepted.get())) return accepted;
  }
  return {};
}

pid_t peer_pid(int connection) { return credentials(connection).pid; }

bool peer_is_same_user(int connection) { return credentials(connection).uid == geteuid(); }

bool send_record(int socket, std::span<const std::byte> record, int passed_fd) {
  iovec part{const_cast<std::byte*>(record.data()), record.size()};
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
  return sendmsg(socket, &header, MSG_NOSIGNAL) == static_cast<ssize_t>(record.size());
}

Received receive_record(int socket, std::span<std::byte> buffer, size_t& length, Fd* passed_fd) {
  iovec part{buffer.data(), buffer.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr header{};
  const auto receive = [&] {
    header = {};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (passed_fd != nullptr) {  // otherwise the kernel closes all descriptors
      header.msg_control = control;
      header.msg_controllen = CMSG_LEN(sizeof(int));  // CMSG_SPACE has room for a second one
    }
    return recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
  };
  ssize_t received = receive();
  // A peer that closed its end with unread records causes this error once, before the records that
  // it had sent.
  if (received < 0 && errno == ECONNRESET) received = receive();
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) return Received::Nothing;
  if (received <= 0) return Received::Closed;
  if (passed_fd != nullptr) take_descriptors(header, *passed_fd);
  length = static_cast<size_t>(received);
  return Received::Message;
}

}  // namespace hostnccl

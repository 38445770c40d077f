#include "hostnccl/base/record_socket.h"

#include <cerrno>
#include <cstring>

#include "hostnccl/base/error.h"

namespace hostnccl {

SocketName::SocketName(const RendezvousName& name) {
  address_.sun_family = AF_UNIX;
  const std::string text = "hostnccl-" + to_hex(name);
  std::memcpy(address_.sun_path + 1, text.data(),
              text.size());  // the leading zero byte makes it abstract
  length_ = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
}

Fd make_record_socket(int type) {
  Fd fd(socket(AF_UNIX, type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) fail_errno("socket");
  return fd;
}

bool send_record(int socket, const void* record, size_t size, int passed_fd, const SocketName* to) {
  iovec part{const_cast<void*>(record), size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (to != nullptr) {
    header.msg_name = const_cast<sockaddr*>(to->get());
    header.msg_namelen = to->length();
  }
  if (passed_fd >= 0) {
    header.msg_control = control;
    header.msg_controllen = sizeof control;
    cmsghdr* item = CMSG_FIRSTHDR(&header);
    item->cmsg_level = SOL_SOCKET;
    item->cmsg_type = SCM_RIGHTS;
    item->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(item), &passed_fd, sizeof passed_fd);
  }
  return sendmsg(socket, &header, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

Received receive_record(int socket, void* record, size_t size, Fd* passed_fd) {
  iovec part{record, size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const ssize_t length = recvmsg(socket, &header, MSG_CMSG_CLOEXEC);
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

}  // namespace hostnccl

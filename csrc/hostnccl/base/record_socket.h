// Unix sockets with abstract names that carry records, each optionally with a file descriptor. Such
// a socket has no file and ends with its last descriptor, however a process ends.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>

#include "hostnccl/base/fd.h"
#include "hostnccl/base/unique_id.h"

namespace hostnccl {

class SocketName {
 public:
  explicit SocketName(const RendezvousName& name);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t length() const { return length_; }

 private:
  sockaddr_un address_{};
  socklen_t length_;
};

Fd make_record_socket(int type);  // SOCK_SEQPACKET or SOCK_DGRAM; never blocks

// False, with errno, if the record was not sent completely.
bool send_record(int socket, const void* record, size_t size, int passed_fd,
                 const SocketName* to = nullptr);

enum class Received { Message, Nothing, Closed };
Received receive_record(int socket, void* record, size_t size, Fd* passed_fd);

}  // namespace hostnccl

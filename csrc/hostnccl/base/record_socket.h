// Unix sockets with abstract names that carry records, each optionally with a file descriptor. Such
// a socket has no file and ends with its last descriptor, regardless of how a process ends.
//
// Every user of the machine can connect to an abstract name, and can bind an unused one.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <cstddef>
#include <span>

#include "hostnccl/base/fd.h"
#include "hostnccl/base/unique_id.h"

namespace hostnccl {

// The socket name for a key is a hash of it, because all users see names in /proc/net/unix.
class SocketName {
 public:
  explicit SocketName(const RendezvousKey& key);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t length() const { return length_; }

 private:
  sockaddr_un address_{};
  socklen_t length_;
};

// None of these sockets ever blocks.
Fd try_bind(const SocketName& name);     // a listening socket; empty if the name is bound already
Fd try_connect(const SocketName& name);  // empty without a listener, or if the queue is full

// The next connection of this user; those of other users are closed. Empty if there is none, or
// after a number of others.
Fd try_accept(int listener);

// The process that connected, or that listens.
pid_t peer_pid(int connection);
bool peer_is_same_user(int connection);

// False, with errno, if the record was not sent completely.
bool send_record(int socket, std::span<const std::byte> record, int passed_fd = -1);

enum class Received { Message, Nothing, Closed };

// Receives a record into the buffer and sets its length; a record longer than the buffer is
// truncated. Descriptors that come with it are closed, except a single one if passed_fd is not
// null.
Received receive_record(int socket, std::span<std::byte> buffer, size_t& length, Fd* passed_fd);

}  // namespace hostnccl

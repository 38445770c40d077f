// Unix sockets with abstract names. They carry records, each optionally with a file descriptor.
// Such a socket has no file. The kernel removes it with its last descriptor, however a process
// ends.
//
// Every user of the machine can connect to an abstract name, and can bind an unused one.
#pragma once

#include <sys/socket.h>
#include <sys/types.h>
#include <sys/un.h>

#include <cstddef>
#include <functional>
#include <list>
#include <optional>
#include <span>
#include <utility>

#include "hostnccl/base/fd.h"
#include "hostnccl/base/keys.h"

namespace hostnccl {

// The name of the socket for a key: a hash of it, because all users see names in /proc/net/unix.
class SocketName {
 public:
  explicit SocketName(const RendezvousKey& key);
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }
  socklen_t length() const { return length_; }

 private:
  sockaddr_un address_{};
  socklen_t length_;
};

// An owned socket. Forked children close it: their copies would keep its name in use and its
// connections open, although no thread of theirs answers.
class Socket {
 public:
  Socket() = default;
  // Owns the descriptor that open() returns, or none if it is negative. No thread forks meanwhile.
  explicit Socket(const std::function<int()>& open);
  Socket(Socket&& other) noexcept : entry_(std::exchange(other.entry_, std::nullopt)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(entry_, other.entry_);
    return *this;
  }
  ~Socket();
  int get() const { return entry_ ? **entry_ : -1; }
  explicit operator bool() const { return get() >= 0; }

 private:
  std::optional<std::list<int>::iterator> entry_;  // of the descriptors of this process
};

// All of these sockets are non-blocking.
Socket try_bind(const SocketName& name);     // a listening one. Empty if the name is already bound
Socket try_connect(const SocketName& name);  // empty without a listener, or if the queue is full

// The next connection of this user. Closes those of other users. Empty if there is none, or after a
// number of others.
Socket try_accept(int listener);

// The process at the other end of a connection.
pid_t peer_pid(int connection);
bool peer_is_same_user(int connection);

// False, with errno set, if the record was not sent completely.
bool send_record(int socket, std::span<const std::byte> record, int passed_fd = -1);

enum class Received { Message, Nothing, Closed };

// Receives a record into the buffer and sets its length. A record longer than the buffer is
// truncated. Descriptors that arrive with it are closed, except a single one if passed_fd is not
// null.
Received receive_record(int socket, std::span<std::byte> buffer, size_t& length, Fd* passed_fd);

}  // namespace hostnccl

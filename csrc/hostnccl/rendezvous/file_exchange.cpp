#include "hostnccl/rendezvous/file_exchange.h"

#include <poll.h>
#include <sys/random.h>

#include <algorithm>
#include <cerrno>

#include "hostnccl/base/error.h"
#include "hostnccl/base/flag.h"

namespace hostnccl {
namespace {

constexpr auto kCheckInterval = std::chrono::milliseconds(50);
constexpr int kPollMs = 1;  // poll() does not report room in the receiver's queue

// The receiver's queue is full, or the receiver is gone; check() detects the latter.
bool is_transient(int error) {
  constexpr int kTransient[] = {EAGAIN, EINTR, ENOBUFS, ETOOMANYREFS, ECONNREFUSED, ENOENT};
  return std::find(std::begin(kTransient), std::end(kTransient), error) != std::end(kTransient);
}

}  // namespace

FileExchange::FileExchange() : socket_(make_record_socket(SOCK_DGRAM)) {
  if (getrandom(&address_, sizeof address_, 0) != ssize_t(sizeof address_)) fail_errno("getrandom");
  const SocketName name(address_.name);
  if (bind(socket_.get(), name.get(), name.length()) != 0) fail_errno("bind of a socket");
}

void FileExchange::run(int own_rank, int own_file, std::vector<Peer>& peers,
                       const std::function<void(int)>& check) {
  std::vector<bool> sent(peers.size()), received(peers.size());
  auto checked = Clock::now();
  for (;;) {
    bool progressed = receive_all(peers, received);
    for (size_t i = 0; i < peers.size(); ++i) {
      if (sent[i]) continue;
      const SocketName to(peers[i].address.name);
      const Message message{peers[i].address.secret, own_rank};
      if (send_record(socket_.get(), &message, sizeof message, own_file, &to)) {
        sent[i] = progressed = true;
      } else if (!is_transient(errno)) {
        fail_errno("sending the descriptor of a window's memory");
      }
    }
    const auto first_missing = [&](const std::vector<bool>& done) {
      return static_cast<size_t>(std::find(done.begin(), done.end(), false) - done.begin());
    };
    const size_t missing = std::min(first_missing(sent), first_missing(received));
    if (missing == peers.size()) return;
    if (progressed) continue;
    pollfd wait{socket_.get(), POLLIN, 0};
    poll(&wait, 1, first_missing(sent) == peers.size() ? int(kCheckInterval.count()) : kPollMs);
    if (Clock::now() - checked < kCheckInterval) continue;
    checked = Clock::now();
    check(peers[missing].rank);
  }
}

bool FileExchange::receive_all(std::vector<Peer>& peers, std::vector<bool>& received) const {
  bool any = false;
  for (;;) {
    Message message{};
    Fd file;
    const Received result = receive_record(socket_.get(), &message, sizeof message, &file);
    if (result == Received::Nothing) return any;
    if (result == Received::Closed || message.secret != address_.secret) continue;
    const auto from = std::find_if(peers.begin(), peers.end(),
                                   [&](const Peer& peer) { return peer.rank == message.rank; });
    if (from == peers.end()) continue;
    from->file = std::move(file);
    received[static_cast<size_t>(from - peers.begin())] = true;
    any = true;
  }
}

}  // namespace hostnccl

#include "hostnccl/rendezvous/refusal.h"

#include <exception>
#include <thread>
#include <vector>

#include "hostnccl/base/thread.h"

namespace hostnccl {
namespace {

constexpr auto kRefusalTime = std::chrono::seconds(10);
constexpr auto kReportTime = std::chrono::seconds(1);
constexpr auto kPause = std::chrono::milliseconds(50);
constexpr int kRefusalPollMs = 500;

// Sends the reason to the listening rank. False if it did not receive it before the end.
bool report(int connection, const RendezvousKey& key, const Failure& reason,
            Clock::time_point end) {
  const ConnectingSide handshake(key);
  bool open = peer_is_same_user(connection) && handshake.send_hello(connection);
  while (open && Clock::now() < end) {
    pollfd wait{connection, POLLIN, 0};
    poll(&wait, 1, int(kPause.count()));
    Message message;
    const Received received = receive_message(connection, message);
    open = received != Received::Closed;
    if (received != Received::Message) continue;
    const auto* challenge = std::get_if<Challenge>(&message);
    return challenge && handshake.send_answer(connection, *challenge) &&
           send_message(connection, reason);
  }
  return false;
}

class Refusal {
 public:
  Refusal(const RendezvousKey& key, const Error& reason, std::optional<JoinListener> listener)
      : key_(key), name_(key), reason_(Failure::of(reason)), listener_(std::move(listener)) {}

  void run() {
    while (!over()) {
      if (!listener_) {
        if (Fd free = try_bind(name_)) listener_.emplace(std::move(free), key_);
      }
      if (listener_) {
        answer();
      } else if (const Fd connection = try_connect(name_)) {
        if (report(connection.get(), key_, reason_, end_)) await_close(connection.get());
      }
      std::this_thread::sleep_for(kPause);
    }
  }

 private:
  bool over() const { return Clock::now() >= end_; }

  // Sends the reason to all ranks that connect, until the end.
  void answer() {
    std::vector<Fd> refused;  // stay open until the end: an early close would discard the reason
    while (!over() && refused.size() < kMaxRanks) {
      std::vector<pollfd> waits;
      listener_->add_to(waits);
      poll(waits.data(), waits.size(), kRefusalPollMs);
      try {
        for (Fd& joiner : listener_->advance()) {
          send_message(joiner.get(), reason_);
          refused.push_back(std::move(joiner));
        }
      } catch (const Error&) {  // no free descriptor yet
        std::this_thread::sleep_for(kPause);
      }
    }
  }

  // Waits until the listening rank stops listening.
  void await_close(int connection) const {
    Message message;
    while (!over() && receive_message(connection, message) != Received::Closed) {
      pollfd wait{connection, POLLIN, 0};
      poll(&wait, 1, kRefusalPollMs);
    }
  }

  const RendezvousKey key_;
  const SocketName name_;
  const Failure reason_;
  std::optional<JoinListener> listener_;
  const Clock::time_point end_ = Clock::now() + kRefusalTime;
};

}  // namespace

void refuse_late_ranks(const RendezvousKey& key, const Error& reason,
                       std::optional<JoinListener> listener) {
  try {
    start_thread([refusal = Refusal(key, reason, std::move(listener))]() mutable {
      guarded([&] {
        refusal.run();
        return abi::ncclSuccess;
      });
    });
  } catch (const std::exception&) {
    // Without the thread, late ranks wait until their own deadlines.
  }
}

void refuse_host(const RendezvousKey& key, const Error& reason) {
  const Fd connection = try_connect(SocketName(key));
  if (connection) report(connection.get(), key, Failure::of(reason), Clock::now() + kReportTime);
}

}  // namespace hostnccl

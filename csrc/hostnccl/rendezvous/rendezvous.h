// Rendezvous (bootstrap) of the ranks with the same unique id. The first rank binds the socket of
// that id and is the host, within its own init call. The others connect and send join requests.
// When all have joined, the host sends each rank the memory of the segment. On an error it sends
// the reason.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "hostnccl/base/error.h"
#include "hostnccl/base/flag.h"
#include "hostnccl/rendezvous/messages.h"
#include "hostnccl/segment/segment.h"

namespace hostnccl {

// The creation of a communicator on this rank, with its time limit and the events that
// end it early. Every wait for another rank during a creation checks it.
class Creation {
 public:
  using Seconds = std::chrono::duration<double>;

  // The limit of creations that this thread begins from now on. Empty: HOSTNCCL_INIT_TIMEOUT.
  static void set_limit(std::optional<Seconds> limit);

  Creation();
  void begin() { deadline_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(limit_); }

  // Ends the creation, from any thread.
  enum class End { None, Aborted, Interrupted, ParentAborted, ParentRevoked };
  void end(End how) { end_.store(how, std::memory_order_relaxed); }

  // Why this rank gives up, as the predicate of its name: "gave up after 0.5 s". Empty if it does
  // not.
  std::optional<Error> given_up() const;
  std::optional<Error> ended() const;  // the same without the time limit
  bool late() const { return Clock::now() >= deadline_; }
  double limit() const { return limit_.count(); }  // in seconds

 private:
  const Seconds limit_;
  Clock::time_point deadline_ = Clock::time_point::max();
  std::atomic<End> end_{End::None};
};

// Starts a thread that reports the reason to ranks that join within some seconds. Every failed rank
// does so, except one that gave up itself, because the processes of the others may end. It listens
// if no other rank does. If a late rank listens, as the host that waits for the others, it reports
// the reason to that rank. listener: that of a host.
void refuse_late_ranks(const RendezvousKey& key, const Error& reason,
                       std::optional<JoinListener> listener = {});

// For a rank that gives up a rendezvous before it has joined: reports the reason to the ranks that
// are in it, then to late ones as above.
void refuse_ranks(const RendezvousKey& key, const Error& reason);

// The ranks that have joined a rendezvous. Any thread may query them.
class JoinedRanks {
 public:
  JoinedRanks(int nranks, int rank) : nranks_(nranks) { joined_.set(static_cast<size_t>(rank)); }

  void set(const RankSet& joined);
  std::vector<int> missing() const;
  std::string count_text() const;     // "2 of 4 ranks"
  std::string missing_text() const;   // "; missing: 1, 3". Empty if none is missing
  std::string progress_text() const;  // "2 of 4 ranks have joined; missing: 1, 3"

 private:
  const int nranks_;
  mutable std::mutex mutex_;
  RankSet joined_;
};

class RendezvousHost;

class Rendezvous {
 public:
  // Throws if a rank can no longer join. May be empty.
  using Watch = std::function<void(int rank)>;

  Rendezvous(int nranks, int rank, Watch watch, const Creation& creation);
  ~Rendezvous();

  // Blocks until all ranks have joined. Throws on an error of any rank, or if one gives up.
  std::shared_ptr<Segment> run(const RendezvousKey& key);
  // Throws if a rank has reported that it cannot map the segment. Called until all ranks use it.
  void check_joiners() const;

  std::string progress() const { return joined_.progress_text(); }

 private:
  std::shared_ptr<Segment> try_join(const RendezvousKey& key, Socket connection);
  std::shared_ptr<Segment> map(int connection, const RendezvousKey& key, const Fd& file) const;
  std::optional<Error> given_up() const;  // why this rank gives up
  void check_given_up() const;
  void check_missing() const;
  void report_missing(int connection) const;
  friend class RendezvousHost;

  const int nranks_;
  const int rank_;
  const Watch watch_;
  const Creation& creation_;
  JoinedRanks joined_;
  std::unique_ptr<RendezvousHost> host_;  // if this rank is the host
};

}  // namespace hostnccl

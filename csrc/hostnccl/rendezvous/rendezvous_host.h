// Host of a rendezvous: collects the join requests, checks that they agree, and sends each joiner
// the segment or the reason for a refusal.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "hostnccl/rendezvous/handshake.h"
#include "hostnccl/rendezvous/rendezvous.h"

namespace hostnccl {

// The segment of that rendezvous in this process. Maps the file if it is not mapped yet.
std::shared_ptr<Segment> map_segment(const Fd& file, int nranks, const RendezvousKey& key);

JoinRequest make_join_request(const RendezvousKey& key, int nranks, int rank);

class RendezvousHost {
 public:
  RendezvousHost(Rendezvous& rendezvous, const RendezvousKey& key, Fd listener);
  std::shared_ptr<Segment> run();
  // After it: throws if a joiner could not map the segment.
  void check_joiners() const;

 private:
  struct Joiner {
    Fd connection;
    JoinRequest request{};
    bool has_request = false;
  };

  void collect_requests();
  void poll_once();  // accepts connections and reads messages
  void accept();
  void read_messages(Joiner& joiner);
  void note_request(Joiner& joiner, const JoinRequest& request);
  void note_closed(Joiner& joiner);
  void note_failure(const Failure& failure) const;
  [[noreturn]] void fail_joiner(const Joiner& joiner, const char* how) const;
  void check(const JoinRequest& request) const;
  void check_key(const JoinRequest& request) const;
  void check_processes() const;  // of the joiners, and of the ranks that are missing
  void send_progress() const;
  std::shared_ptr<Segment> send_segment();
  [[noreturn]] void refuse(const Error& reason);

  Rendezvous& rendezvous_;
  const RendezvousKey key_;
  const JoinRequest self_;
  std::optional<JoinListener> listener_;  // until the segment is sent
  Fd file_;                               // of the segment
  std::vector<Joiner> joiners_;
  RankSet joined_;
  bool refusing_ = false;
  int requests_ = 1;    // of joiners, and this rank's own
  int largest_nranks_;  // of all requests
};

}  // namespace hostnccl

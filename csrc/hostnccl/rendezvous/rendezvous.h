// Rendezvous (bootstrap) of the ranks that hold the same unique id. The first rank binds the socket
// of that id and is the host, within its own init call. The others connect and send it join
// requests. When all have joined, each rank gets the memory of the segment; on an error each gets
// the reason.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "hostnccl/rendezvous/creation.h"
#include "hostnccl/rendezvous/joined_ranks.h"
#include "hostnccl/segment/segment.h"

namespace hostnccl {

class RendezvousHost;

class Rendezvous {
 public:
  // Throws if a rank can no longer join; may be empty.
  using Watch = std::function<void(int rank)>;

  Rendezvous(int nranks, int rank, Watch watch, const Creation& creation);
  ~Rendezvous();

  // Blocks until all ranks have joined. Throws on an error of any rank, and if one gives up the
  // creation.
  std::shared_ptr<Segment> run(const RendezvousKey& key);
  // Used until all ranks use the segment: throws if a rank has reported that it cannot.
  void check_joiners() const;

  std::string progress() const { return joined_.progress(); }

 private:
  std::shared_ptr<Segment> try_join(const RendezvousKey& key, Fd connection);
  std::shared_ptr<Segment> map(int connection, const RendezvousKey& key, const Fd& file) const;
  // Why this rank gives up.
  std::optional<Error> given_up() const;
  void check_given_up() const;
  void check_missing() const;
  friend class RendezvousHost;

  const int nranks_;
  const int rank_;
  const Watch watch_;
  const Creation& creation_;
  JoinedRanks joined_;
  std::unique_ptr<RendezvousHost> host_;  // if this rank is it
};

}  // namespace hostnccl

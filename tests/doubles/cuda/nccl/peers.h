// The connections between the ranks of a communicator, and the closed ranks, in a file mapped by
// the ranks' processes.
#pragma once

#include <atomic>
#include <memory>
#include <string>

namespace cuda_double {

class Peers {
 public:
  // Shared by ranks with the same key and size.
  Peers(const std::string& key, int nranks, int rank);
  ~Peers();
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // Records the GPU of this rank before all ranks have joined. Then: whether two ranks share one.
  void place(int device);
  bool share_gpu() const;

  void connect(int peer);  // all if below 0
  void close();            // this rank's connections
  // Waits until no rank of another living process is connected to this process's ranks. Returns
  // immediately while another rank of this process is not closed: only the last one waits.
  void wait() const;

  // One-sided operations. wait_set_up() waits for all ranks. False if one is closed, or this one is
  // aborted.
  void set_up() { set_up_word(rank_).store(1); }
  bool wait_set_up(const std::atomic<bool>& aborted) const;

  // Collectives: whether all ranks have called their first one.
  void call() { called(rank_).store(1); }
  bool all_called() const;
  // Messages: whether the peer has called its side of the first one in this direction.
  void message(int peer, bool sends) { messages(rank_, peer).fetch_or(sends ? kSent : kReceived); }
  bool answered(int peer, bool sends) const {
    return (messages(peer, rank_).load() & (sends ? kReceived : kSent)) != 0;
  }

 private:
  static constexpr int kSent = 1, kReceived = 2;

  std::atomic<int>& pid(int rank) const { return words_[rank]; }
  std::atomic<int>& closed(int rank) const { return words_[nranks_ + rank]; }
  std::atomic<int>& set_up_word(int rank) const { return words_[2 * nranks_ + rank]; }
  std::atomic<int>& called(int rank) const { return words_[3 * nranks_ + rank]; }
  std::atomic<int>& gpu(int rank) const { return words_[4 * nranks_ + rank]; }
  std::atomic<int>& connected(int from, int to) const {
    return words_[5 * nranks_ + from * nranks_ + to];
  }
  std::atomic<int>& messages(int from, int to) const {
    return words_[(5 + nranks_) * nranks_ + from * nranks_ + to];
  }
  bool in_use(int rank) const;

  const int nranks_;
  const int rank_;
  std::string path_;
  std::atomic<int>* words_ = nullptr;
  size_t bytes_ = 0;
};

}  // namespace cuda_double

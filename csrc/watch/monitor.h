// Monitor: the thread that checks the deadlines of all communicators of the process and ends late
// operations. It sleeps while there is no communicator.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "comm/deadlines.h"
#include "watch/inquiry.h"

namespace pynccl {

class Monitor {
 public:
  static void observe();  // watches communicators created from now on

 private:
  class Sink;

  // Queries GPU drivers for completed operations on a separate thread, because a driver can block
  // the query.
  class DriverPoller {
   public:
    // Returns when the queries are done, or after one second. In the latter case
    // Deadlines::silent_since() is set until they are done.
    void poll(const std::vector<OpenCommunicators::Entry>& all);

   private:
    void run();

    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<std::shared_ptr<Deadlines>> pending_;
    std::int64_t began_ = 0;  // 0: no query is in progress
    bool running_ = false;
  };

  using Inquiries = std::map<Communicator*, std::shared_ptr<Inquiry>>;

  void start();
  void wake();
  void run();
  static bool expire(Communicator& communicator, const Deadlines::Late& late,
                     std::shared_ptr<Inquiry>& inquiry) noexcept;

  std::mutex mutex_;
  std::condition_variable changed_;
  bool running_ = false;
  bool woken_ = false;
  DriverPoller poller_;  // used by the monitor's thread only
};

}  // namespace pynccl

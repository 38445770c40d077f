// Monitor: the thread that checks the deadlines of all communicators of the process and ends late
// operations. It sleeps while there is no communicator.
#pragma once

#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>

#include "comm/deadlines.h"
#include "watch/inquiry.h"

namespace pynccl {

class Monitor {
 public:
  static void observe();  // watches communicators created from now on

 private:
  class Sink;
  // The inquiries about late operations.
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
};

}  // namespace pynccl

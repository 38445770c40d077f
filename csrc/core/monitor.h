// Monitor: the thread that looks at the deadlines of all communicators of the process, and ends
// what is late. It sleeps while there is no communicator.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "core/deadlines.h"

namespace pynccl {

class Communicator;

class Monitor {
 public:
  static Monitor& get();

  void add(const std::shared_ptr<Deadlines>& deadlines, std::weak_ptr<Communicator> communicator);
  void remove(const Deadlines& deadlines);
  void wake();                                          // limits have changed
  std::vector<std::shared_ptr<Deadlines>> deadlines();  // of all open communicators, oldest first
  std::vector<std::shared_ptr<Communicator>> communicators();  // the same

 private:
  struct Watched {
    std::shared_ptr<Deadlines> deadlines;
    std::weak_ptr<Communicator> communicator;
  };

  void run();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Watched> watched_;
  bool running_ = false;
  bool woken_ = false;
};

}  // namespace pynccl

// ForkLock: a shared lock that delays forks by other threads, so that the child does not inherit a
// mutex locked in its scope. Scopes are short: they never block and run no Python. A fork waits for
// at most half a second, because the forking thread may own a lock that the driver needs.
#pragma once

namespace pynccl {

class ForkLock {
 public:
  ForkLock();
  ~ForkLock();
  ForkLock(const ForkLock&) = delete;
  ForkLock& operator=(const ForkLock&) = delete;
};

}  // namespace pynccl

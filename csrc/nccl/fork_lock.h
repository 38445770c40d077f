// ForkLock: while one exists, a fork by another thread waits, so that the child has no copy of a
// mutex that its scope has locked. Scopes are short: they wait for nothing, and run no Python. A
// fork waits for half a second at most, because the forking thread may hold what a driver needs.
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

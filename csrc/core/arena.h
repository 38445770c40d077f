// Memory from ncclMemAlloc for the pools of frameworks (torch.cuda.MemPool, cupy.cuda.MemoryPool),
// which cut it up themselves; what an arena sees is their segments. A communicator that follows the
// arena has each segment of its device registered for as long as it lives.
//
// There is one arena for each library and it is never destroyed: pools give memory back until the
// end of the process.
#pragma once

#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "core/communicator.h"

namespace pynccl {

class Arena {
 public:
  // Throws MissingFunction where the library has no ncclMemAlloc.
  static Arena& of(const std::shared_ptr<Library>& library);

  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  const std::shared_ptr<Library>& shared_library() const { return library_; }

  // A segment on a device (below 0: the current one), registered with all that follow there.
  void* allocate(std::size_t bytes, int device);
  // Deregisters a segment and frees it. Throws std::invalid_argument where there is none.
  void deallocate(void* data);

  // A communicator that follows, from its construction until close(). What there is is registered
  // at once, what is allocated later with its allocation. A closed communicator follows no more:
  // NCCL has dropped its registrations.
  class Follower {
   public:
    Follower(Arena& arena, const std::shared_ptr<Communicator>& communicator);
    ~Follower();  // close(), silently
    Follower(const Follower&) = delete;
    Follower& operator=(const Follower&) = delete;

    // Deregisters everything. Throws what NCCL answered when a segment could not be registered
    // with its allocation: an allocator has no way to say it.
    void close();
    std::size_t segments() const;  // how many are registered
    bool closed() const;           // by itself or with the communicator

   private:
    friend class Arena;

    void add(void* data, std::size_t bytes);
    void drop(void* data);
    bool follows(int device) const;

    Arena& arena_;
    std::shared_ptr<Communicator> communicator_;
    int device_;
    std::map<void*, void*> handles_;  // by segment
    std::exception_ptr failure_;
    bool open_ = false;
  };

 private:
  explicit Arena(std::shared_ptr<Library> library) : library_(std::move(library)) {}

  struct Segment {
    std::size_t bytes;
    int device;
  };

  std::shared_ptr<Library> library_;
  mutable std::mutex mutex_;
  std::map<void*, Segment> segments_;
  std::vector<Follower*> followers_;
};

}  // namespace pynccl

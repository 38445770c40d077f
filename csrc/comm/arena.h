// Arena: memory from ncclMemAlloc for the pools of frameworks (torch.cuda.MemPool,
// cupy.cuda.MemoryPool). A pool allocates segments and divides them itself. Arena::PoolRegistration
// registers the segments of one device with a communicator.
//
// There is one arena per library. It is never destroyed: pools free memory until the process ends.
#pragma once

#include <cstddef>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/communicator.h"

namespace pynccl {

class Arena {
 public:
  // Throws MissingFunction where the library has no ncclMemAlloc.
  static Arena& of(const std::shared_ptr<Library>& library);

  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  const std::shared_ptr<Library>& shared_library() const { return library_; }

  // Allocates a segment on a device (below 0: the current one) and registers it with every
  // communicator of that device that has a PoolRegistration.
  void* allocate(std::size_t bytes, int device);
  // Deregisters a segment and frees it after the work on its device. Waits for that work where the
  // segment is registered. Throws std::invalid_argument for another address.
  void deallocate(void* data);

  // The registration of an arena's segments with a communicator, until close(). Present segments
  // are registered at once, later ones when they are allocated. Closing the communicator ends it:
  // NCCL frees the registrations.
  class PoolRegistration {
   public:
    PoolRegistration(Arena& arena, const std::shared_ptr<Communicator>& communicator);
    ~PoolRegistration();  // close(), without exceptions
    PoolRegistration(const PoolRegistration&) = delete;
    PoolRegistration& operator=(const PoolRegistration&) = delete;

    // Deregisters all segments. Throws the error of a segment that could not be registered when it
    // was allocated: an allocator cannot report it.
    void close();
    std::size_t segments() const;  // how many are registered
    bool closed() const;           // itself or the communicator

   private:
    friend class Arena;

    void add(void* data, std::size_t bytes);
    void drop(void* data);
    bool covers(int device) const;

    Arena& arena_;
    std::shared_ptr<Communicator> communicator_;
    int device_;
    std::map<void*, void*> handles_;  // by segment
    std::exception_ptr failure_;
    bool open_ = false;
  };

 private:
  explicit Arena(std::shared_ptr<Library> library) : library_(std::move(library)) {}

  struct PoolSegment {
    std::size_t bytes;
    int device;
  };

  std::shared_ptr<Library> library_;
  mutable std::mutex mutex_;
  std::map<void*, PoolSegment> segments_;
  std::vector<PoolRegistration*> registrations_;
};

}  // namespace pynccl

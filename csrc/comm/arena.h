// Arena: a segment allocator on ncclMemAlloc for the memory pools of frameworks
// (torch.cuda.MemPool, cupy.cuda.MemoryPool), which subdivide the segments themselves.
// Arena::PoolRegistration registers the segments of one device with a communicator.
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
  // Throws MissingFunction if the library lacks ncclMemAlloc.
  static Arena& of(const std::shared_ptr<Library>& library);

  const std::shared_ptr<Library>& shared_library() const { return library_; }

  // Allocates a segment on a device (negative: the current one) and registers it with every
  // communicator of that device that has a PoolRegistration.
  void* allocate(std::size_t bytes, int device);
  // Deregisters a segment and frees it once the work on its device is complete. Blocks for that
  // work if the segment is registered. Throws std::invalid_argument for any other address.
  void deallocate(void* data);

  // Makes pynccl_torch_malloc and pynccl_torch_free use this arena. Throws std::invalid_argument if
  // they use another one.
  void serve_torch();

  // Registers an arena's segments with a communicator until close(): existing segments
  // immediately, later ones when they are allocated. Closing the communicator ends the
  // registration, because NCCL frees it.
  class PoolRegistration {
   public:
    PoolRegistration(Arena& arena, const std::shared_ptr<Communicator>& communicator);
    ~PoolRegistration();  // close(), without exceptions
    PoolRegistration(const PoolRegistration&) = delete;
    PoolRegistration& operator=(const PoolRegistration&) = delete;

    // Deregisters all segments. Throws the error of any segment whose registration failed at its
    // allocation, which the allocator could not report.
    void close();
    std::size_t segments() const;  // the number of registered segments
    bool closed() const;           // this registration or its communicator

   private:
    friend class Arena;

    void add(void* data, std::size_t bytes);
    void drop(void* data);
    bool covers(int device) const;

    Arena& arena_;
    std::shared_ptr<Communicator> communicator_;
    int device_;
    std::map<void*, void*> handles_;  // segment to registration handle
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

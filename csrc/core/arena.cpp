#include "core/arena.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "core/device.h"

namespace pynccl {

Arena& Arena::of(const std::shared_ptr<Library>& library) {
  library->nccl<&NcclTable::ncclMemAlloc>();
  static std::mutex mutex;
  static auto& arenas = *new std::map<const Library*, Arena*>;
  const std::lock_guard lock(mutex);
  Arena*& arena = arenas[library.get()];
  if (!arena) arena = new Arena(library);
  return *arena;
}

void* Arena::allocate(std::size_t bytes, int device) {
  if (bytes == 0) throw std::invalid_argument("size: 0 bytes are no segment");
  const DeviceScope scope(*library_, device);
  void* data = nullptr;
  NCCL_CHECK(*library_, nullptr, -1, ncclMemAlloc, (&data, bytes));
  const std::lock_guard lock(mutex_);
  segments_[data] = {bytes, scope.device()};
  for (Follower* follower : followers_) {
    if (!follower->follows(scope.device())) continue;
    try {
      follower->add(data, bytes);
    } catch (...) {  // the memory is good without; close() tells
      if (!follower->failure_) follower->failure_ = std::current_exception();
    }
  }
  return data;
}

void Arena::deallocate(void* data) {
  int device = -1;
  {
    const std::lock_guard lock(mutex_);
    const auto segment = segments_.find(data);
    if (segment == segments_.end())
      throw std::invalid_argument("data: it is no segment of this arena");
    device = segment->second.device;
    segments_.erase(segment);
    for (Follower* follower : followers_) follower->drop(data);
  }
  const DeviceScope scope(*library_, device);
  NCCL_CHECK(*library_, nullptr, -1, ncclMemFree, (data));
}

Arena::Follower::Follower(Arena& arena, const std::shared_ptr<Communicator>& communicator)
    : arena_(arena), communicator_(communicator), device_(communicator->device()) {
  communicator->handle();  // throws unless it is open
  communicator->library().nccl<&NcclTable::ncclCommRegister>();
  const std::lock_guard lock(arena_.mutex_);
  try {
    for (const auto& [data, segment] : arena_.segments_)
      if (segment.device == device_) add(data, segment.bytes);
  } catch (...) {
    while (!handles_.empty()) drop(handles_.begin()->first);
    throw;
  }
  arena_.followers_.push_back(this);
  open_ = true;
}

Arena::Follower::~Follower() {
  try {
    close();
  } catch (...) {  // there is nobody to tell
  }
}

void Arena::Follower::close() {
  const std::lock_guard lock(arena_.mutex_);
  if (!open_) return;
  open_ = false;
  std::erase(arena_.followers_, this);
  while (!handles_.empty()) drop(handles_.begin()->first);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

std::size_t Arena::Follower::segments() const {
  const std::lock_guard lock(arena_.mutex_);
  return communicator_->closed() ? 0 : handles_.size();
}

bool Arena::Follower::closed() const {
  const std::lock_guard lock(arena_.mutex_);
  return !open_ || communicator_->closed();
}

bool Arena::Follower::follows(int device) const {
  return device == device_ && !communicator_->closed();
}

void Arena::Follower::add(void* data, std::size_t bytes) {
  const ncclComm_t comm = communicator_->handle();
  void* handle = nullptr;
  NCCL_CHECK(communicator_->library(), comm, communicator_->known_rank(), ncclCommRegister,
             (comm, data, bytes, &handle));
  handles_[data] = handle;
}

// Silently: a communicator that failed takes its registrations along.
void Arena::Follower::drop(void* data) {
  const auto found = handles_.find(data);
  if (found == handles_.end()) return;
  const ncclComm_t comm = communicator_->handle_or_null();
  if (comm) NCCL_RECORD(communicator_->library(), ncclCommDeregister, (comm, found->second));
  handles_.erase(found);
}

}  // namespace pynccl

#include "comm/arena.h"

#include <sys/types.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <utility>

#include "comm/device_memory.h"
#include "nccl/device.h"

namespace pynccl {
namespace {

std::atomic<Arena*> torch_arena = nullptr;

}  // namespace

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
  if (bytes == 0) throw std::invalid_argument("size: must be greater than 0 bytes");
  const DeviceScope scope(*library_, device);
  void* data = allocate_memory(*library_, bytes);
  const std::lock_guard lock(mutex_);
  segments_[data] = {bytes, scope.device()};
  for (PoolRegistration* registration : registrations_) {
    if (!registration->covers(scope.device())) continue;
    try {
      registration->add(data, bytes);
    } catch (...) {  // the memory is usable unregistered; close() throws the error
      if (!registration->failure_) registration->failure_ = std::current_exception();
    }
  }
  return data;
}

void Arena::deallocate(void* data) {
  int device = -1;
  bool registered = false;
  {
    const std::lock_guard lock(mutex_);
    const auto segment = segments_.find(data);
    if (segment == segments_.end())
      throw std::invalid_argument("data: not the address of a segment of this arena");
    device = segment->second.device;
    for (const PoolRegistration* registration : registrations_)
      registered |= registration->handles_.contains(data);
  }
  if (registered) wait_for_device(*library_, device);  // as cudaFree does
  {
    const std::lock_guard lock(mutex_);
    segments_.erase(data);
    for (PoolRegistration* registration : registrations_) registration->drop(data);
  }
  free_memory_later(library_, data, device);
}

void Arena::serve_torch() {
  Arena* expected = nullptr;
  // Memory must be freed by the arena that allocated it, so the arena can only be set once.
  if (!torch_arena.compare_exchange_strong(expected, this) && expected != this)
    throw std::invalid_argument("library: torch's pools already use the memory of " +
                                expected->shared_library()->path());
}

Arena::PoolRegistration::PoolRegistration(Arena& arena,
                                          const std::shared_ptr<Communicator>& communicator)
    : arena_(arena), communicator_(communicator), device_(communicator->device()) {
  communicator->handle();  // throws unless the communicator is open
  // The handle must outlive the registration.
  communicator->check_owned("register_pool");
  communicator->library().nccl<&NcclTable::ncclCommRegister>();
  const std::lock_guard lock(arena_.mutex_);
  try {
    for (const auto& [data, segment] : arena_.segments_)
      if (segment.device == device_) add(data, segment.bytes);
  } catch (...) {
    while (!handles_.empty()) drop(handles_.begin()->first);
    throw;
  }
  arena_.registrations_.push_back(this);
  open_ = true;
}

Arena::PoolRegistration::~PoolRegistration() {
  try {
    close();
  } catch (...) {  // a destructor must not throw
  }
}

void Arena::PoolRegistration::close() {
  const std::lock_guard lock(arena_.mutex_);
  if (!open_) return;
  open_ = false;
  std::erase(arena_.registrations_, this);
  while (!handles_.empty()) drop(handles_.begin()->first);
  if (failure_) std::rethrow_exception(std::exchange(failure_, nullptr));
}

std::size_t Arena::PoolRegistration::segments() const {
  const std::lock_guard lock(arena_.mutex_);
  return communicator_->closed() ? 0 : handles_.size();
}

bool Arena::PoolRegistration::closed() const {
  const std::lock_guard lock(arena_.mutex_);
  return !open_ || communicator_->closed();
}

bool Arena::PoolRegistration::covers(int device) const {
  return device == device_ && !communicator_->closed();
}

void Arena::PoolRegistration::add(void* data, std::size_t bytes) {
  const Communicator::Use comm(*communicator_);
  void* handle = nullptr;
  COMM_CHECK(comm, ncclCommRegister, (comm, data, bytes, &handle));
  handles_[data] = handle;
}

// Ignores NCCL's errors: a failed communicator frees its registrations itself.
void Arena::PoolRegistration::drop(void* data) {
  const auto found = handles_.find(data);
  if (found == handles_.end()) return;
  try {
    const Communicator::Use comm(*communicator_);
    NCCL_CALL_NOTHROW(communicator_->library(), ncclCommDeregister, (comm, found->second));
  } catch (const std::invalid_argument&) {  // the communicator is closed
  }
  handles_.erase(found);
}

}  // namespace pynccl

// The C functions that torch.cuda.memory.CUDAPluggableAllocator looks up in this module by name.
// They have no context argument, so one arena of the process serves them.
extern "C" {

// torch reports a null result as out of memory.
[[gnu::visibility("default")]] void* pynccl_torch_malloc(ssize_t bytes, int device, void*) {
  pynccl::Arena* arena = pynccl::torch_arena.load(std::memory_order_acquire);
  if (!arena || bytes <= 0) return nullptr;
  try {
    return arena->allocate(static_cast<std::size_t>(bytes), device);
  } catch (...) {
    return nullptr;
  }
}

[[gnu::visibility("default")]] void pynccl_torch_free(void* data, ssize_t, int, void*) {
  pynccl::Arena* arena = pynccl::torch_arena.load(std::memory_order_acquire);
  if (!arena || !data) return;
  try {
    arena->deallocate(data);
  } catch (...) {  // at the end of the process the driver may be unloaded
  }
}

}  // extern "C"

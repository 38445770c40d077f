#include "core/window.h"

#include "abi/constants.h"
#include "core/device.h"
#include "core/device_memory.h"
#include "core/issue.h"
#include "core/stream.h"

namespace pynccl {

// An all-gather of the places of one window, in the memory of its device.
class Window::Exchange {
 public:
  explicit Exchange(Window& window)
      : window_(window),
        communicator_(*window.communicator_),
        library_(communicator_.library()),
        stream_(communicator_.shared_library(), communicator_.device(), 0),
        places_(std::make_shared<std::vector<Place>>(communicator_.nranks())) {
    const DeviceScope scope(library_, stream_.device());
    memory_ = allocate_memory(library_, bytes());
    CUdeviceptr base = 0;
    const auto address = reinterpret_cast<CUdeviceptr>(window.address_);
    std::size_t size = 0;
    // Memory that the driver does not know is refused by NCCL.
    const CUresult known = library_.driver().MemGetAddressRange(&base, &size, address);
    own() = {known == CUDA_SUCCESS ? address - base : 0, window.nbytes_};
    copy(own_memory(), &own(), sizeof(Place));
  }
  ~Exchange() {
    // After an exception the stream may still copy to and from places_.
    auto* kept = new std::shared_ptr(places_);
    const auto release = [](void* data) { delete static_cast<decltype(kept)>(data); };
    library_.driver().LaunchHostFunc(stream_.handle(), release, kept);
    free_memory_later(communicator_.shared_library(), memory_, stream_.device());
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  void begin() {
    Operation operation{};
    operation.kind = OperationKind::kAllGather;
    operation.dtype = ncclUint8;
    operation.sendbuff = own_memory();
    operation.recvbuff = memory_;
    operation.count = sizeof(Place);
    operation.stream = stream_.handle();
    communicator_.issue(operation);
  }
  void finish() {
    const DeviceScope scope(library_, stream_.device());
    copy(places_->data(), memory_, bytes());
    try {
      stream_.synchronize();
    } catch (const DriverFailure&) {  // the communicator has the reason
      const ncclResult_t error = error_of_communicator();
      if (succeeded(error)) throw;
      communicator_.throw_failed(error, "ncclCommWindowRegister", __FILE__, __LINE__);
    }
    window_.places_ = *places_;
  }

 private:
  ncclResult_t error_of_communicator() const {
    try {
      return communicator_.async_error();
    } catch (const std::invalid_argument&) {  // another thread has aborted it
      return ncclInvalidUsage;
    }
  }
  std::size_t rank() const { return static_cast<std::size_t>(communicator_.rank()); }
  std::size_t bytes() const { return places_->size() * sizeof(Place); }
  Place& own() { return (*places_)[rank()]; }
  char* own_memory() const { return static_cast<char*>(memory_) + rank() * sizeof(Place); }
  void copy(void* to, const void* from, std::size_t size) const {
    DRIVER_CHECK(library_, MemcpyAsync,
                 (reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), size,
                  stream_.handle()));
  }

  Window& window_;
  Communicator& communicator_;
  Library& library_;
  Stream stream_;
  std::shared_ptr<std::vector<Place>> places_;
  void* memory_ = nullptr;
};

Window::Window(std::shared_ptr<Communicator> communicator, void* address, std::size_t nbytes,
               int flags, std::shared_ptr<void> memory)
    : communicator_(std::move(communicator)),
      address_(address),
      nbytes_(nbytes),
      flags_(flags),
      memory_(std::move(memory)),
      handle_(communicator_->new_window()) {
  communicator_->add_memory(address_, {nbytes_, (flags & abi::NCCL_WIN_COLL_SYMMETRIC) != 0});
}

Window::~Window() {
  if (is_open())
    communicator_->keep_until_closed(std::move(memory_));
  else
    cancel();
}

void Window::cancel() {
  if (state_ != State::kClosed) communicator_->remove_memory(address_);
  state_ = State::kClosed;
}

void Window::make(const std::vector<Window*>& windows) {
  if (windows.empty()) return;
  Library& library = windows.front()->communicator_->library();
  const RelaxedMode relaxed(library);  // a thread that captures may register windows
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (Window* window : windows)
    if (window->communicator_->blocking() && window->communicator_->nranks() > 1)
      exchanges.push_back(std::make_unique<Exchange>(*window));
  if (!exchanges.empty()) {
    GroupScope group(library);
    for (const auto& exchange : exchanges) exchange->begin();
    group.end();
  }
  for (const auto& exchange : exchanges) exchange->finish();
  exchanges.clear();
  for (const Window* window : windows) window->check_exchanged();
  GroupScope group(library);
  for (Window* window : windows) window->begin();
  group.end();
  for (Window* window : windows) window->finish();
}

void Window::check_exchanged() const {
  for (std::size_t rank = 0; rank < places_.size(); ++rank)
    if (places_[rank].start != places_[0].start)
      throw std::invalid_argument("buffer: begins " + std::to_string(places_[0].start) +
                                  " bytes after the beginning of its allocation on rank 0, and " +
                                  std::to_string(places_[rank].start) + " bytes on rank " +
                                  std::to_string(rank) +
                                  "; NCCL needs the same on all ranks. No rank has registered it");
}

void Window::begin() {
  const Communicator::Use comm(*communicator_);
  NCCL_CHECK(communicator_->library(), comm, communicator_->known_rank(), ncclCommWindowRegister,
             (comm, address_, nbytes_, handle_, flags_));
}

void Window::close() {
  if (state_ == State::kPending)
    throw std::invalid_argument("window: it is still being registered; leave the group first");
  if (closed()) return cancel();
  const ncclWindow_t window = handle();
  Library& library = communicator_->library();
  // NCCL unmaps the memory of the peers at once; hostnccl keeps it until its operations are done.
  const bool unmaps = library.memory() == Memory::kDevice;
  if (unmaps && !wait_for_device(library, communicator_->device()))
    throw std::invalid_argument("window: it cannot be closed during a capture");
  cancel();
  if (!window) return;
  const Communicator::Use comm(*communicator_);
  NCCL_CHECK(library, comm, communicator_->known_rank(), ncclCommWindowDeregister, (comm, window));
}

ncclWindow_t Window::handle() const {
  if (state_ == State::kPending)
    throw std::invalid_argument("window: it is still being registered; leave the group first");
  if (closed()) throw std::invalid_argument("window: it is closed");
  const ncclWindow_t window = *handle_;
  if (!window && !communicator_->blocking() && !communicator_->ready())
    throw std::invalid_argument(
        "window: it is still being registered; wait until its communicator is ready");
  return window;
}

void* Window::user_pointer() const {
  const ncclWindow_t window = handle();
  const Communicator::Use comm(*communicator_);
  void* pointer = nullptr;
  NCCL_CHECK(communicator_->library(), comm, communicator_->known_rank(), ncclWinGetUserPtr,
             (comm, window, &pointer));
  return pointer;
}

std::size_t Window::nbytes_of(int rank) const {
  return places_.empty() ? nbytes_ : places_[static_cast<std::size_t>(rank)].nbytes;
}

}  // namespace pynccl

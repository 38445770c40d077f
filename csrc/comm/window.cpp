#include "comm/window.h"

#include <algorithm>
#include <utility>

#include "abi/constants.h"
#include "comm/device_communicator.h"
#include "comm/device_memory.h"
#include "comm/stream.h"
#include "nccl/device.h"

namespace pynccl {
namespace {

// From this version on, NCCL sets up one-sided operations when a symmetric window is registered.
// Before, the first operation does it, and waits for all ranks.
constexpr int kEagerOneSidedSetup = 23100;

}  // namespace

// An all-gather of the offers for one window, through device memory. On CPUs it needs no allocation
// that could fail.
class Window::Exchange {
 public:
  explicit Exchange(Window& window)
      : window_(window),
        communicator_(*window.communicator_),
        library_(communicator_.library()),
        stream_(communicator_.shared_library(), communicator_.device(), 0),
        offers_(std::make_shared<std::vector<Offer>>(communicator_.nranks())) {
    own() = window.offers_.front();
    if (on_cpus()) return;
    const DeviceScope scope(library_, stream_.device());
    memory_ = allocate_memory(library_, bytes());
    copy(own_memory(), &own(), sizeof(Offer));
  }
  ~Exchange() {
    if (!finished_) {  // the stream may still copy to and from offers_
      auto* kept = new std::shared_ptr(offers_);
      const auto release = [](void* data) { delete static_cast<decltype(kept)>(data); };
      library_.driver().LaunchHostFunc(stream_.handle(), release, kept);
    }
    if (memory_) free_memory_later(communicator_.shared_library(), memory_, stream_.device());
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  void begin() {
    Operation operation{};
    operation.kind = OperationKind::kAllGather;
    operation.dtype = ncclUint8;
    operation.sendbuff = own_memory();
    operation.recvbuff = memory();
    operation.count = sizeof(Offer);
    operation.stream = stream_.handle();
    communicator_.issue(operation);
  }
  void finish() {
    const DeviceScope scope(library_, stream_.device());
    try {
      stream_.synchronize();  // interruptible, unlike the wait of a copy to pageable memory
      if (memory_) {
        copy(offers_->data(), memory_, bytes());
        stream_.synchronize();
      }
    } catch (const DriverFailure&) {  // check() throws the reason
      check();
      throw;
    }
    check();
    finished_ = true;
    window_.offers_ = *offers_;
  }

 private:
  // Needed because on GPUs an aborted or revoked operation completes without an error.
  void check() {
    const ncclResult_t error = error_of_communicator();
    if (!succeeded(error))
      communicator_.throw_failed(error, "ncclCommWindowRegister", __FILE__, __LINE__);
  }
  ncclResult_t error_of_communicator() const {
    if (communicator_.expired()) return ncclInvalidUsage;
    try {
      return communicator_.async_error();
    } catch (const std::invalid_argument&) {  // another thread has aborted it
      return ncclInvalidUsage;
    }
  }
  std::size_t rank() const { return static_cast<std::size_t>(communicator_.rank()); }
  std::size_t bytes() const { return offers_->size() * sizeof(Offer); }
  Offer& own() { return (*offers_)[rank()]; }
  bool on_cpus() const { return library_.memory() == Memory::kHost; }
  void* memory() const { return memory_ ? memory_ : offers_->data(); }
  char* own_memory() const { return static_cast<char*>(memory()) + rank() * sizeof(Offer); }
  void copy(void* to, const void* from, std::size_t size) const {
    DRIVER_CHECK(library_, MemcpyAsync,
                 (reinterpret_cast<CUdeviceptr>(to), reinterpret_cast<CUdeviceptr>(from), size,
                  stream_.handle()));
  }

  Window& window_;
  Communicator& communicator_;
  Library& library_;
  Stream stream_;
  std::shared_ptr<std::vector<Offer>> offers_;
  void* memory_ = nullptr;  // of the device; null on CPUs
  bool finished_ = false;
};

Window::Window(std::shared_ptr<Communicator> communicator, void* address, std::size_t nbytes,
               int flags, std::shared_ptr<void> memory)
    : communicator_(std::move(communicator)),
      address_(address),
      nbytes_(nbytes),
      flags_(flags),
      memory_(std::move(memory)),
      handle_(communicator_->new_window()) {}

Window::~Window() {
  if (is_open()) {
    communicator_->forget_window(address_);
    communicator_->keep_until_closed(std::move(memory_));
  } else {
    cancel();
  }
}

void Window::cancel() {
  if (std::exchange(holds_address_, false)) communicator_->remove_memory(address_);
  state_ = State::kClosed;
}

void Window::register_all(const std::vector<Window*>& windows) {
  const auto begin = [&](Library& library) {
    discard_on_failure(windows, [&] { exchange_offers(windows); });
    for (const Window* window : windows) window->check_offers();
    GroupScope group(library);
    discard_on_failure(windows, [&] {
      for (Window* window : windows) window->begin();
    });
    group.end();
  };
  create_together(windows, "ncclCommWindowRegister", begin, [&] {
    for (Window* window : windows) window->finish();
    set_up_one_sided(windows);
  });
}

// Calls step. If it fails for a reason that the other ranks cannot see, for example a lack of
// memory, discards the communicators, because the other ranks would wait for this one.
template <class Step>
void Window::discard_on_failure(const std::vector<Window*>& windows, Step&& step) {
  try {
    step();
  } catch (const NcclFailure& failure) {  // NCCL refuses these calls on all ranks
    if (failure.code != ncclInvalidArgument && failure.code != ncclInvalidUsage)
      discard_healthy(windows);
    throw;
  } catch (...) {
    discard_healthy(windows);
    throw;
  }
}

void Window::discard_healthy(const std::vector<Window*>& windows) {
  for (const Window* window : windows) {
    Communicator& communicator = *window->communicator_;
    if (communicator.blocking() && !communicator.revoked() && !communicator.failed())
      communicator.discard();
  }
}

void Window::exchange_offers(const std::vector<Window*>& windows) {
  std::vector<std::unique_ptr<Exchange>> exchanges;
  for (Window* window : windows) {
    window->offers_ = {window->make_offer()};
    if (window->communicator_->blocking() && window->communicator_->nranks() > 1)
      exchanges.push_back(std::make_unique<Exchange>(*window));
  }
  if (exchanges.empty()) return;
  GroupScope group(windows.front()->communicator_->library());
  for (const auto& exchange : exchanges) exchange->begin();
  group.end();
  for (const auto& exchange : exchanges) exchange->finish();
}

Window::Offer Window::make_offer() {
  const Library& library = communicator_->library();
  const auto address = reinterpret_cast<CUdeviceptr>(address_);
  holds_address_ =
      communicator_->add_memory(address_, {nbytes_, (flags_ & abi::NCCL_WIN_COLL_SYMMETRIC) != 0});
  Offer offer{0, nbytes_, communicator_->window_fingerprint(), Problem::kNone,
              library.driver_version() >= kOneSidedDriver};
  CUdeviceptr base = 0;
  std::size_t size = 0;
  const bool known = library.driver().MemGetAddressRange(&base, &size, address) == CUDA_SUCCESS;
  if (known) offer.start = address - base;
  CUmemGenericAllocationHandle handle = 0;
  const bool shareable =
      known && library.driver().MemRetainAllocationHandle(&handle, address_) == CUDA_SUCCESS;
  if (shareable) library.driver().MemRelease(handle);
  if (nbytes_ == 0)
    offer.problem = Problem::kEmpty;
  else if (!holds_address_)
    offer.problem = Problem::kInUse;
  else if (!shareable)
    offer.problem = Problem::kNotShareable;
  else if (address % abi::NCCL_WIN_REQUIRED_ALIGNMENT != 0)
    offer.problem = Problem::kMisaligned;
  return offer;
}

std::string Window::text_of(Problem problem) {
  switch (problem) {
    case Problem::kEmpty:
      return "has no elements";
    case Problem::kMisaligned:
      return "the address must be a multiple of " +
             std::to_string(abi::NCCL_WIN_REQUIRED_ALIGNMENT) +
             " bytes; use memory from mem_alloc()";
    case Problem::kInUse:
      return "another window of this communicator begins at the same address; close it first";
    default:
      return "is not memory that NCCL can share between ranks; use memory from mem_alloc()";
  }
}

void Window::check_offers() const {
  const auto refuse = [](const std::string& text) {
    throw std::invalid_argument("buffer: " + text + ". No rank has registered it");
  };
  const auto shareable = [](const Offer& offer) { return offer.problem != Problem::kNotShareable; };
  // Memory that no rank can share is left to NCCL, which may register nothing and report success.
  if (std::any_of(offers_.begin(), offers_.end(), shareable)) {
    const auto has_problem = [](const Offer& offer) { return offer.problem != Problem::kNone; };
    const auto own = offers_.begin() + (offers_.size() == 1 ? 0 : communicator_->rank());
    if (has_problem(*own)) refuse(text_of(own->problem));
    const auto found = std::find_if(offers_.begin(), offers_.end(), has_problem);
    if (found != offers_.end())
      refuse("of rank " + std::to_string(found - offers_.begin()) + ": " + text_of(found->problem));
  }
  for (std::size_t rank = 1; rank < offers_.size(); ++rank) {
    const Offer &first = offers_[0], &other = offers_[rank];
    if (other.start != first.start)
      refuse("begins " + std::to_string(first.start) +
             " bytes after the beginning of its allocation on rank 0, and " +
             std::to_string(other.start) + " bytes on rank " + std::to_string(rank) +
             "; NCCL needs the same on all ranks");
    if (other.open_windows != first.open_windows)
      refuse("rank 0 and rank " + std::to_string(rank) +
             " have different windows open; NCCL needs the same on all ranks when a window is "
             "registered: close windows in the same order");
  }
}

void Window::set_up_one_sided(const std::vector<Window*>& windows) {
  Library& library = windows.front()->communicator_->library();
  const NcclTable& nccl = library.nccl_table();
  if (!nccl.ncclSignal || library.version() >= kEagerOneSidedSetup) return;
  const auto supports = [](const Offer& offer) { return offer.one_sided != 0; };
  std::vector<std::pair<Communicator*, std::unique_ptr<Stream>>> ranks;
  for (const Window* window : windows) {
    Communicator& communicator = *window->communicator_;
    const std::vector<Offer>& offers = window->offers_;
    if (offers.size() == 1 || !std::all_of(offers.begin(), offers.end(), supports)) continue;
    if (communicator.set_up_one_sided())
      ranks.emplace_back(&communicator, std::make_unique<Stream>(communicator.shared_library(),
                                                                 communicator.device(), 0));
  }
  const auto together = [&](auto&& call) {
    GroupScope group(library);
    for (const auto& [communicator, stream] : ranks) {
      const Communicator::Use comm(*communicator);
      // If NCCL cannot run one-sided operations between these ranks, it refuses on all of them.
      if (!succeeded(call(comm, communicator->rank(), stream->handle()))) return false;
    }
    group.end();
    return true;
  };
  const auto signal = [&](ncclComm_t comm, int self, cudaStream_t stream) {
    return nccl.ncclSignal(self, 0, 0, 0, comm, stream);
  };
  const auto wait = [&](ncclComm_t comm, int self, cudaStream_t stream) {
    ncclWaitSignalDesc_t one{1, self, 0, 0};
    return nccl.ncclWaitSignal(1, &one, comm, stream);
  };
  if (!ranks.empty() && together(signal)) together(wait);
}

void Window::begin() {
  const Communicator::Use comm(*communicator_);
  COMM_CHECK(comm, ncclCommWindowRegister, (comm, address_, nbytes_, handle_, flags_));
}

void Window::finish() {
  state_ = State::kOpen;
  number_ = communicator_->open_memory(address_, this);
}

void Window::close() {
  check_registered();
  if (closed()) return cancel();
  const Communicator::Claim claim(communicator_);
  const ncclWindow_t window = handle();
  wait_for_use();
  if (window) {
    const Communicator::Use comm(*communicator_);
    COMM_CHECK(comm, ncclCommWindowDeregister, (comm, window));
  }
  cancel();
}

// NCCL unmaps the memory of the peers immediately. hostnccl keeps it mapped for collectives, but
// not for puts.
void Window::wait_for_use() const {
  const std::shared_ptr<Library>& library = communicator_->shared_library();
  if (library->memory() == Memory::kHost) {
    for (const cudaStream_t stream : put_streams_)  // a destroyed stream has no work
      library->driver().StreamSynchronize(stream);
  } else if (!wait_for_device_or_signal(library, communicator_->device())) {
    throw std::invalid_argument("window: it cannot be closed during a capture");
  }
}

void Window::record_put(cudaStream_t stream) const {
  if (stream && std::find(put_streams_.begin(), put_streams_.end(), stream) == put_streams_.end())
    put_streams_.push_back(stream);
}

void Window::check_registered() const {
  if (state_ == State::kPending)
    throw std::invalid_argument("window: it is still being registered; leave the group first");
}

ncclWindow_t Window::handle() const {
  check_registered();
  if (closed()) throw std::invalid_argument("window: it is closed");
  const ncclWindow_t window = *handle_;
  if (!window && !communicator_->blocking() && !communicator_->ready())
    throw std::invalid_argument(
        "window: it is still being registered; wait until its communicator is ready");
  return window;
}

// NCCL does not check the range of a put, and refuses an invalid source without a reason.
void Window::check_put(const Operation& put) const {
  if (!handle())
    throw std::invalid_argument("window: NCCL cannot share this memory between the ranks");
  const std::size_t size = nbytes_of(put.root_or_peer);
  const std::size_t nbytes = put.count * element_size(put.dtype);
  if (put.count == 0)
    throw std::invalid_argument("tensor: has no elements; use signal() to send only a signal");
  if (put.offset > size || nbytes > size - put.offset)
    throw std::invalid_argument("offset: " + std::to_string(put.offset) + " and " +
                                std::to_string(nbytes) + " bytes end after the window of rank " +
                                std::to_string(put.root_or_peer) + ", which has " +
                                std::to_string(size) + " bytes");
  if (!communicator_->in_symmetric_window(put.sendbuff, nbytes))
    throw std::invalid_argument(
        "tensor: is not in a symmetric window of this communicator; NCCL puts from registered "
        "memory only");
}

void* Window::user_pointer() const {
  const ncclWindow_t window = handle();
  const Communicator::Use comm(*communicator_);
  void* pointer = nullptr;
  COMM_CHECK(comm, ncclWinGetUserPtr, (comm, window, &pointer));
  return pointer;
}

std::size_t Window::nbytes_of(int rank) const {
  return offers_.size() == 1 ? nbytes_ : offers_[static_cast<std::size_t>(rank)].nbytes;
}

void Window::check_offset(int rank, std::size_t offset) const {
  if (offset >= nbytes_of(rank))
    throw std::invalid_argument("offset: " + std::to_string(offset) +
                                " is not inside the window of rank " + std::to_string(rank) +
                                ", which has " + std::to_string(nbytes_of(rank)) + " bytes");
}

// Adds the offset itself, because NCCL compares it with the size of the local memory.
void* Window::lsa_pointer(int lsa_rank, std::size_t offset) const {
  const ncclWindow_t window = handle();
  const ncclTeam lsa = team_of(*communicator_, TeamKind::kLsa);
  check_lsa_rank(lsa, lsa_rank);
  check_offset(rank_to_world(*communicator_, lsa, lsa_rank), offset);
  if (!window) return nullptr;
  void* pointer = nullptr;
  const Communicator::Use comm(*communicator_);
  COMM_CHECK(comm, ncclGetLsaDevicePointer, (window, 0, lsa_rank, &pointer));
  return pointer ? static_cast<char*>(pointer) + offset : nullptr;
}

void* Window::peer_pointer(int rank, std::size_t offset) const {
  const ncclWindow_t window = handle();
  check_offset(rank, offset);
  if (!window) return nullptr;
  void* pointer = nullptr;
  const Communicator::Use comm(*communicator_);
  COMM_CHECK(comm, ncclGetPeerDevicePointer, (window, 0, rank, &pointer));
  return pointer ? static_cast<char*>(pointer) + offset : nullptr;
}

void* Window::multimem_pointer(std::size_t offset) const {
  const ncclWindow_t window = handle();
  check_offset(communicator_->rank(), offset);
  if (!window) return nullptr;
  void* pointer = nullptr;
  const Communicator::Use comm(*communicator_);
  COMM_CHECK(comm, ncclGetLsaMultimemDevicePointer, (window, 0, &pointer));
  return pointer ? static_cast<char*>(pointer) + offset : nullptr;
}

// Here, because a put needs its window. A missing function is an error.
void Communicator::issue_one_sided(OperationKind kind, ncclComm_t comm, const Operation& o) {
  const auto call = [&]<auto Entry>(const char* name, auto... arguments) {
    // NCCL refuses valid operations without a reason.
    check_operation(library_->nccl<Entry>()(arguments..., comm, o.stream), name,
                    "; NCCL supports one-sided operations if all ranks can map each other's memory "
                    "(one LSA team), or if its RMA proxy connects them");
  };
#define CALL(name, ...) call.operator()<&NcclTable::name>(#name, __VA_ARGS__)
  if (kind == OperationKind::kPutSignal) {
    o.window->record_put(o.stream);
    CALL(ncclPutSignal, o.sendbuff, o.count, o.dtype, o.root_or_peer, o.window->handle(), o.offset,
         o.signal, o.context, 0u);
  } else if (kind == OperationKind::kSignal) {
    CALL(ncclSignal, o.root_or_peer, o.signal, o.context, 0u);
  } else {
    CALL(ncclWaitSignal, static_cast<int>(o.count),
         static_cast<ncclWaitSignalDesc_t*>(const_cast<void*>(o.sendbuff)));
  }
#undef CALL
}

}  // namespace pynccl

// The class Communicator: creation, state, destruction, buffers and operators. The operations are
// in collectives/.
#include <algorithm>

#include "comm/communicator.h"
#include "python/call/bind.h"
#include "python/call/errors.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/comm/communicator.h"
#include "python/comm/group.h"
#include "python/convert/buffer.h"
#include "python/convert/integer.h"
#include "python/convert/red_op.h"
#include "python/raw/structs.h"

namespace pynccl::python {
namespace {

// A communicator that is aborted, with a ResourceWarning, if it is deleted without close().
std::shared_ptr<Communicator> make_unwatched(std::shared_ptr<Library> library,
                                             const Communicator::Options& options) {
  const auto destroy = [](Communicator* c) {
    if (c->closed() || c->pending()) return delete c;
    warn_unclosed("a pynccl Communicator was not closed; it is aborted");
    const GilAcquired gil;  // this thread may or may not hold it
    const GilReleased released;
    delete c;
  };
  return {new Communicator(std::move(library), with_comparison(options)), destroy};
}

std::shared_ptr<Communicator> make_owned(std::shared_ptr<Library> library,
                                         const Communicator::Options& options) {
  auto communicator = make_unwatched(std::move(library), options);
  watch_missing_ranks(communicator);
  return communicator;
}

// Creates a communicator by begin().
template <class Begin>
std::shared_ptr<Communicator> create(std::shared_ptr<Library> library,
                                     const Communicator::Options& options, Begin begin) {
  auto communicator = make_owned(std::move(library), options);
  create_or_change(Group::Action::kCreate, communicator, begin);
  return communicator;
}

// The options of a child. With config None it inherits the parent's.
Communicator::Options child_options(Communicator& parent, const py::object& config) {
  Communicator::Options options =
      config.is_none() ? parent.inherited() : options_from_python(config, parent.device());
  options.store = parent.store();
  return options;
}

// Calls a function of pynccl.libraries that finds the library and the devices.
py::tuple call_resolver(const char* name, const py::object& provider, const py::object& device) {
  return py::module_::import("pynccl.libraries").attr(name)(provider, device);
}

// Creates a communicator without a parent.
template <class Begin>
std::shared_ptr<Communicator> create_first(const py::object& config, const py::object& provider,
                                           const py::object& device, const py::object& store,
                                           Begin begin) {
  const py::tuple found = call_resolver("resolve", provider, device);
  Communicator::Options options = options_from_python(config, py::cast<int>(found[1]));
  options.store = store_from_python(store);
  return create(py::cast<std::shared_ptr<Library>>(found[0]), options, begin);
}

// The number of ranks and this rank.
std::pair<int, int> size_and_rank_from_python(const py::object& nranks, const py::object& rank) {
  const int size = integer_from_python<int>("nranks", nranks.ptr());
  const int own = integer_from_python<int>("rank", rank.ptr());
  if (size < 1) throw_value_error("nranks", size, " is below 1");
  if (own < 0 || own >= size) throw_rank("rank", own, size);
  return {size, own};
}

// The ids of a unique_id argument: a single id, or a list or tuple of ids.
std::vector<ncclUniqueId> ids_from_python(const py::object& value, int nranks) {
  if (!py::isinstance<py::list>(value) && !py::isinstance<py::tuple>(value))
    return {unique_id_from_python("unique_id", value.ptr())};
  std::vector<ncclUniqueId> ids;
  for (const py::handle id : value) ids.push_back(unique_id_from_python("unique_id", id.ptr()));
  if (ids.empty()) throw_value_error("unique_id", "the sequence is empty");
  if (ids.size() > static_cast<std::size_t>(nranks))
    throw_value_error("unique_id", ids.size(), " ids for ", nranks,
                      " ranks, must be at most one per rank");
  return ids;
}

std::shared_ptr<Communicator> init(const py::object& nranks, const py::object& unique_id,
                                   const py::object& rank, const py::object& config,
                                   const py::object& provider, const py::object& device,
                                   const py::object& store) {
  const auto [size, own] = size_and_rank_from_python(nranks, rank);
  const std::vector<ncclUniqueId> ids = ids_from_python(unique_id, size);
  return create_first(
      config, provider, device, store,
      [=, size = size, own = own](Communicator& c) { c.begin_init(size, ids, own); });
}

// The checks of Communicator.from_store() before it uses the store.
py::tuple check_creation(const py::object& nranks, const py::object& rank, const py::object& config,
                         const py::object& store) {
  const auto [size, own] = size_and_rank_from_python(nranks, rank);
  const Communicator::Options options = options_from_python(config, -1);
  check_store(store);
  const auto limit = options.init_timeout ? options.init_timeout : options.timeout;
  return py::make_tuple(size, own, limit ? *limit : seconds_from_limit(default_limit()));
}

py::list init_all(const py::object& devices, const py::object& provider) {
  const py::tuple found = call_resolver("resolve_all", provider, devices);
  const auto library = py::cast<std::shared_ptr<Library>>(found[0]);
  const auto ordinals = py::cast<std::vector<int>>(found[1]);
  std::vector<std::shared_ptr<Communicator>> ranks;
  {
    const GilReleased released;
    ranks = Communicator::init_all(library, ordinals, &make_unwatched);
  }
  for (const auto& rank : ranks) watch_missing_ranks(rank);  // requires the GIL
  return py::cast(ranks);
}

py::object split(const std::shared_ptr<Communicator>& parent, const py::object& color,
                 const py::object& key, const py::object& config) {
  int group = kSplitNoColor;
  if (!color.is_none()) {
    group = integer_from_python<int>("color", color.ptr());
    if (group < 0)
      throw_value_error("color", group,
                        " is negative; pass None for a rank without a new communicator");
  }
  const int order = integer_from_python<int>("key", key.ptr());
  const auto child = create(parent->shared_library(), child_options(*parent, config),
                            [=](Communicator& c) { c.begin_split(*parent, group, order); });
  return group == kSplitNoColor ? py::object(py::none()) : py::cast(child);
}

std::vector<int> excluded_from_python(Communicator& parent, const py::object& exclude) {
  if (!py::isinstance<py::sequence>(exclude) || py::isinstance<py::str>(exclude))
    throw_type_error("exclude", "a sequence of ranks", exclude.ptr());
  std::vector<int> ranks;
  for (const py::handle item : exclude) {
    const int rank = integer_from_python<int>("exclude", item.ptr());
    const std::string text = "exclude: rank " + std::to_string(rank);
    if (rank < 0 || rank >= parent.nranks()) throw_rank("exclude", rank, parent.nranks());
    if (rank == parent.rank())
      throw py::value_error(text + " is this rank; only the remaining ranks call shrink()");
    if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end())
      throw py::value_error(text + " is given twice");
    ranks.push_back(rank);
  }
  if (ranks.empty()) throw_value_error("exclude", "the sequence is empty");
  return ranks;
}

std::shared_ptr<Communicator> shrink(const std::shared_ptr<Communicator>& parent,
                                     const py::object& exclude, bool abort,
                                     const py::object& config) {
  const std::vector<int> excluded = excluded_from_python(*parent, exclude);
  return create(parent->shared_library(), child_options(*parent, config),
                [=](Communicator& c) { c.begin_shrink(*parent, excluded, abort); });
}

// Creates the communicator of the surviving ranks and frees the parent.
std::shared_ptr<Communicator> create_recovered(const std::shared_ptr<Communicator>& parent,
                                               const std::vector<int>& lost, double seconds,
                                               const py::object& config,
                                               const py::object& unique_id) {
  std::optional<ncclUniqueId> id;
  if (!unique_id.is_none()) id = unique_id_from_python("unique_id", unique_id.ptr());
  Communicator::Options options = child_options(*parent, config);
  if (id) options.inherits = false;  // NCCL does not know the parent
  const auto limit = std::exchange(options.init_timeout, seconds);
  const auto child = create(parent->shared_library(), options,
                            [=](Communicator& c) { c.begin_recovered(*parent, lost, id); });
  const GilReleased released;
  constexpr double kGrace = 1;  // lets the library end a non-blocking creation by itself
  child->wait_ready(seconds + kGrace);
  child->set_init_timeout(limit);
  parent->discard();
  return child;
}

std::shared_ptr<Communicator> grow(const std::shared_ptr<Communicator>& parent,
                                   const py::object& nranks, const py::object& unique_id,
                                   const py::object& config) {
  const int size = integer_from_python<int>("nranks", nranks.ptr());
  if (size <= parent->nranks())
    throw_value_error("nranks", size, " must be above the current size ", parent->nranks());
  std::optional<ncclUniqueId> id;
  if (!unique_id.is_none()) id = unique_id_from_python("unique_id", unique_id.ptr());
  return create(parent->shared_library(), child_options(*parent, config),
                [=](Communicator& c) { c.begin_grow(*parent, size, id); });
}

std::shared_ptr<Communicator> join(const py::object& nranks, const py::object& unique_id,
                                   const py::object& rank, const py::object& config,
                                   const py::object& provider, const py::object& device,
                                   const py::object& store) {
  const auto [size, own] = size_and_rank_from_python(nranks, rank);
  const ncclUniqueId id = unique_id_from_python("unique_id", unique_id.ptr());
  return create_first(
      config, provider, device, store,
      [=, size = size, own = own](Communicator& c) { c.begin_join(size, id, own); });
}

void add_creation(CommunicatorClass& type) {
  type.def(py::init(&init), py::arg("nranks"), py::arg("unique_id"), py::arg("rank"), py::kw_only(),
           py::arg("config") = py::none(), py::arg("provider") = py::none(),
           py::arg("device") = py::none(), py::arg("store") = py::none())
      .def_static("init_all", &init_all, py::arg("devices"), py::kw_only(),
                  py::arg("provider") = py::none(),
                  R"(Create all ranks of a communicator in this process (ncclCommInitAll).

Args:
    devices: the number of ranks, or a sequence of one device per rank.
    provider: as for Communicator.

Returns:
    The communicators, in rank order. Use them from one thread inside group(), or each from its own
    thread.

Raises:
    TypeError, ValueError: an invalid argument, or devices of different providers.
    LibraryNotFoundError: the library of the provider was not found.
    NcclError: NCCL failed.)")
      .def("split", &split, py::arg("color"), py::arg("key") = 0, py::kw_only(),
           py::arg("config") = py::none(),
           R"(Create a communicator of the ranks with the same color (ncclCommSplit).

All ranks of this communicator must call it, even those without a color, since NCCL waits for all of
them. A revoked communicator can be split and stays revoked. The child of a non-blocking
communicator is created in the background, regardless of its own Config, and this communicator is
not ready until the child is. Closing or aborting one of the two leaves the other usable, unless
they share resources (split_share in the Config of this communicator; setting it only for the child
shares nothing).

Args:
    color: a nonnegative integer; None for a rank that does not join a new communicator
        (NCCL_SPLIT_NOCOLOR).
    key: determines the order of the ranks in the new communicator. Equal keys keep the current
        order.
    config: a Config; None inherits this communicator's.

Returns:
    The new Communicator, or None if color is None.

Raises:
    TypeError, ValueError: an invalid argument, or this communicator is closed.
    NcclError: a rank died or NCCL failed.
    NcclTimeoutError: not all ranks joined within config.init_timeout.)")
      .def("shrink", &shrink, py::arg("exclude"), py::kw_only(), py::arg("abort") = false,
           py::arg("config") = py::none(),
           R"(Create a communicator without some of the ranks (ncclCommShrink, NCCL 2.27).

Only the remaining ranks call it, all with the same ranks to exclude, and NCCL waits for all of
them. They keep their order. For non-blocking communicators see split().

Args:
    exclude: the ranks to exclude, a sequence of at least one.
    abort: True aborts the operations in progress on this communicator first (NCCL_SHRINK_ABORT).
        Use it if a rank is dead or an operation hangs. Afterwards this communicator can only be
        closed, aborted or shrunk again. (NCCL resets its flags and would accept operations, but
        they would wait for the excluded ranks forever.) False requires that the operations in
        progress can complete. This communicator then stays usable.
    config: a Config; None inherits this communicator's.

Returns:
    The new Communicator. The caller must still close or abort this one.

Raises:
    TypeError, ValueError: an invalid argument, or this communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.27.
    NcclError: a rank that is not excluded is dead, or the communicator has failed and abort is
        False.
    NcclRemoteError: also with abort, if NCCL's network has noticed that a rank died: use
        recover(store=...).
    NcclTimeoutError: not all ranks joined within config.init_timeout.)")
      .def("grow", &grow, py::arg("nranks"), py::arg("unique_id") = py::none(), py::kw_only(),
           py::arg("config") = py::none(),
           R"(Create a communicator with more ranks (ncclCommGrow, NCCL 2.29).

All ranks of this communicator call it and keep their rank numbers. The new ranks call
Communicator.join() at the same time.

Args:
    nranks: the number of ranks of the new communicator, above the current number.
    unique_id: on the rank that called get_unique_id(), the UniqueId; None on all others.
    config: a Config; None inherits this communicator's.

Returns:
    The new Communicator. This one stays usable.

Raises:
    TypeError, ValueError: an invalid argument, or this communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.29.
    NcclError: no rank or several ranks pass a unique_id, a rank died, or NCCL failed.
    NcclTimeoutError: not all ranks joined within config.init_timeout.)")
      .def_static("join", &join, py::arg("nranks"), py::arg("unique_id"), py::arg("rank"),
                  py::kw_only(), py::arg("config") = py::none(), py::arg("provider") = py::none(),
                  py::arg("device") = py::none(), py::arg("store") = py::none(),
                  R"(Join a growing communicator as a new rank (ncclCommGrow, NCCL 2.29).

Args:
    nranks: the number of ranks of the new communicator.
    unique_id: the UniqueId that a rank of the growing communicator created with get_unique_id().
    rank: this rank, from the old size to nranks - 1.
    config, provider, device, store: as for Communicator.

Returns:
    The new Communicator.

Raises:
    TypeError, ValueError: an invalid argument.
    LibraryNotFoundError: the library of the provider was not found.
    MissingFunctionError: the library is older than NCCL 2.29.
    NcclError: the arguments of the ranks do not match, a rank died, or NCCL failed.
    NcclTimeoutError: not all ranks joined within config.init_timeout.)");
}

using Release = py::call_guard<GilReleased>;

py::object memory_stats(Communicator& c) {
  std::uint64_t suspendable, persistent, total, suspended;
  {
    const GilReleased released;
    suspendable = c.memory_stat(ncclStatGpuMemSuspend);
    persistent = c.memory_stat(ncclStatGpuMemPersist);
    total = c.memory_stat(ncclStatGpuMemTotal);
    suspended = c.memory_stat(ncclStatGpuMemSuspended);
  }
  const py::object type = py::module_::import("pynccl._internal.records").attr("MemoryStats");
  return type(suspendable, persistent, total, suspended != 0);
}

py::object async_error(Communicator& c) {
  const ncclResult_t state = c.async_error();
  if (state == ncclSuccess) return py::none();
  std::string text = "communicator";
  if (c.known_rank() >= 0) text += " of rank " + std::to_string(c.known_rank());
  const Library& library = c.library();
  text += std::string(": ") + library.nccl<&NcclTable::ncclGetErrorString>()(state);
  const char* last = library.nccl<&NcclTable::ncclGetLastError>()(c.handle_or_null());
  if (last && *last) text += std::string(": ") + last;
  return error_object(NcclFailure(state, "ncclCommGetAsyncError", c.known_rank(), text));
}

void wait_ready(Communicator& c, std::optional<double> timeout) {
  if (timeout && !(*timeout >= 0)) throw_value_error("timeout", *timeout, " is below 0 seconds");
  const GilReleased released;
  c.wait_ready(timeout);
}

void add_life(CommunicatorClass& type) {
  type.def(
          "get_unique_id", &Communicator::get_unique_id, Release(),
          R"(Create the id for new ranks to join this communicator (ncclCommGetUniqueId, NCCL 2.29).

One rank creates it, passes it to grow() and sends it to the new ranks, which pass it to
Communicator.join(). An id is valid for one grow(), and no second one can be created before that.

Returns:
    A UniqueId.

Raises:
    ValueError: the communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.29.
    NcclError: an unused id exists already, or NCCL failed.)")
      .def(
          "revoke", &Communicator::revoke, Release(),
          R"(Abort the operations in progress and keep the communicator (ncclCommRevoke, NCCL 2.28.7).

Every rank calls it once, from any thread. It neither waits for other ranks nor notifies them: on a
rank that does not call it, the operations stay pending. Blocked operations return, and later ones
raise NcclInvalidUsageError. Only split(), shrink(), close() and abort() can follow. NCCL refuses
the call once finalize() has called NCCL.

On GPUs, interrupted operations end as if they were done, with incomplete data. Work.wait() of the
mirror raises for them. NCCL waits for the work that precedes the operations on their streams. If
that is a hung operation of another communicator, revoke that communicator as well. On hostnccl, an
operation that waits for a revoked rank raises NcclRemoteError. Revoking a borrowed communicator
also ends the operations of its owner.

Raises:
    ValueError: the communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.28.7.
    NcclTimeoutError: NCCL exceeded the time limit. It continues in the background.
    NcclError: NCCL failed, or the communicator was already revoked or finalized.)")
      .def(
          "suspend",
          [](const std::shared_ptr<Communicator>& c) {
            create_or_change(Group::Action::kChange, c, &Communicator::begin_suspend);
          },
          R"(Suspend the communicator and release part of its memory (ncclCommSuspend, NCCL 2.29.7).

All ranks call it after their operations are done, and NCCL waits for all of them. A thread with
several ranks calls it inside group(). Until resume(), operations raise NcclInvalidUsageError, since
NCCL would accept them and their kernels would use unmapped memory. close(), abort(), finalize(),
split() and revoke() are allowed meanwhile.

Raises:
    ValueError: the communicator is closed or borrowed.
    MissingFunctionError: the library is older than NCCL 2.29.7.
    NcclError: the communicator is suspended already, operations are in progress, or NCCL failed.)")
      .def(
          "resume",
          [](const std::shared_ptr<Communicator>& c) {
            create_or_change(Group::Action::kChange, c, &Communicator::begin_resume);
          },
          R"(Resume a suspended communicator (ncclCommResume, NCCL 2.29.7).

All ranks call it. A thread with several ranks calls it inside group().

Raises:
    ValueError: the communicator is closed or borrowed.
    MissingFunctionError: the library is older than NCCL 2.29.7.
    NcclError: the communicator is not suspended, or NCCL failed.)")
      .def("memory_stats", &memory_stats,
           R"(The memory allocated by this rank of the communicator (ncclCommMemStats, NCCL 2.29.7).

Returns:
    MemoryStats, in bytes of GPU memory or, on CPUs, of shared memory.

Raises:
    ValueError: the communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.29.7.
    NcclError: NCCL failed.)")
      .def("async_error", &async_error,
           R"(The error of the communicator's background work (ncclCommGetAsyncError).

Returns:
    An NcclError, not raised; NcclInProgressError while the communicator is not ready; None if
    there is no error.

Raises:
    ValueError: the communicator is closed.)")
      .def_property_readonly(
          "ready", &Communicator::ready,
          "Whether a communicator with Config(blocking=0) is created and its calls are done "
          "(ncclCommGetAsyncError).\n\nRaises:\n    NcclError: the background work failed.")
      .def("wait_ready", &wait_ready, py::arg("timeout") = py::none(),
           R"(Wait until a communicator with Config(blocking=0) is ready (ncclCommGetAsyncError).

Args:
    timeout: the time limit in seconds; None waits without limit.

Raises:
    ValueError: timeout is negative, or the communicator is closed.
    NcclTimeoutError: the communicator is not ready in time. The background work continues; wait
        again or abort.
    NcclError: the background work failed.)");
}

// The registration of a buffer with a communicator.
class BufferRegistration {
 public:
  BufferRegistration(std::shared_ptr<Communicator> communicator, const py::object& buffer)
      : communicator_(std::move(communicator)) {
    communicator_->handle();  // a closed communicator is refused before its arguments are read
    Owners owners;
    TensorView view = view_tensor(owners, "buffer", buffer.ptr());
    check_placement(view, communicator_->library(), communicator_->device());
    const Communicator::Use comm(*communicator_);
    COMM_CHECK(comm, ncclCommRegister, (comm, view.data, view.nbytes(), &handle_));
    registered_ = true;
    communicator_->add_registrations(1);
    buffer_ = hold(py::make_tuple(buffer, owners.object()));
  }
  BufferRegistration(const BufferRegistration&) = delete;
  BufferRegistration& operator=(const BufferRegistration&) = delete;
  ~BufferRegistration() {
    try {
      close();
    } catch (...) {  // NCCL frees the registrations of a failed communicator
    }
  }

  std::uintptr_t handle() const { return reinterpret_cast<std::uintptr_t>(handle_); }

  void close() {
    if (!registered_) return;
    registered_ = false;
    communicator_->add_registrations(-1);
    if (communicator_->closed()) return;
    const Communicator::Use comm(*communicator_);
    COMM_CHECK(comm, ncclCommDeregister, (comm, handle_));
    buffer_.reset();
  }

 private:
  std::shared_ptr<Communicator> communicator_;
  std::shared_ptr<void> buffer_;
  void* handle_ = nullptr;
  bool registered_ = false;
};

}  // namespace

void bind_communicator(py::module_& m) {
  py::class_<BufferRegistration> registration(
      m, "Registration", "The registration of a buffer with a communicator (ncclCommRegister).");
  add_closing(registration);
  registration
      .def_property_readonly("handle", &BufferRegistration::handle,
                             "NCCL's handle of the registration as an integer.")
      .def("close", &BufferRegistration::close, Release(),
           R"(Deregister the buffer (ncclCommDeregister). Closing twice is allowed.

Raises:
    NcclError: NCCL failed.)");

  CommunicatorClass type(
      m, "Communicator",
      R"(One rank of a communicator (ncclCommInitRankConfig, ncclCommInitRankScalable).

The constructor waits until all ranks have joined, unless config.blocking is 0 or it is called
inside group(). Only one thread at a time may use a communicator, except for abort() and revoke().
If config.blocking is 0, ready and wait_ready() report when the communicator is created, and when
split(), shrink(), finalize() and similar calls are done. Until then, other calls raise ValueError.
Operations return once NCCL has issued them, and close() aborts a communicator that is still being
created.

Args:
    nranks: the number of ranks.
    unique_id: the UniqueId shared by all ranks, through a store by from_store(); or a list or tuple
        of several, the same on all ranks, which speeds up the start of very many ranks
        (ncclCommInitRankScalable).
    rank: this rank, from 0 to nranks - 1.
    config: a Config; None uses the defaults.
    provider: "cuda" for libnccl.so.2, "host" for hostnccl on CPUs. None is the provider of device
        if that is given, otherwise the environment variable PYNCCL_PROVIDER, otherwise "cuda" if a
        GPU is usable, else "host".
    device: the GPU as an integer or a str such as "cuda:1", or "cpu". None is the thread's current
        device.
    store: a torch.distributed.Store shared by all ranks, or an object with its methods. If an
        operation or call exceeds its time limit, the ranks use it to find out which of them are
        missing. Communicators created from this one inherit it.

Raises:
    TypeError, ValueError: an invalid argument, or a setting that the library does not support yet.
    LibraryNotFoundError: the library of the provider was not found.
    NcclError: the arguments of the ranks do not match, a rank died, or NCCL failed.
    NcclTimeoutError: not all ranks joined within config.init_timeout.)");
  add_creation(type);
  add_life(type);
  type.def("finalize", &Communicator::finalize, Release(),
           R"(Wait until all issued operations are done (ncclCommFinalize).

close() includes it. Only close() and abort() may follow. It waits for other ranks only as far as
the operations do. NCCL is called after the operations are done, since an operation that exceeds its
time limit is revoked, and NCCL refuses that after ncclCommFinalize. NCCL then waits for the graphs
that captured the communicator, including those of torch and CuPy. The time limit of the
communicator applies to both waits together. A non-blocking communicator calls NCCL immediately and
waits for neither. NCCL refuses to finalize a revoked communicator, and to finalize twice.

Raises:
    ValueError: the communicator is closed or borrowed.
    NcclTimeoutError: an operation or NCCL exceeded the time limit.
    NcclError: NCCL failed, or a rank died.)")
      .def("close", &Communicator::close, Release(),
           R"(Wait for the issued operations and free the communicator (ncclCommDestroy).

Closing twice is allowed. Graphs that use the communicator cannot be launched afterwards. A
communicator with an asynchronous error is aborted. Closing a borrowed communicator waits for
nothing and frees nothing; it only drops the handle.

It waits like finalize(), with the same time limit, and then for NCCL to free the communicator, for
the rest of the limit or 5 seconds, whichever is longer. After that NCCL continues in the
background. From NCCL 2.24 on, freeing waits for the ranks in other processes that NCCL has
connected with this one, until all of them are closed or finalized. It does not if the communicator
is revoked, and it never waits for ranks in this process: the last of them frees what they share.
After shrink(abort=True) close() aborts, since ncclCommDestroy would wait for the excluded ranks
(NCCL 2.31.2).

A communicator that NCCL may still use is not freed before the process exits: one that a graph of
torch or CuPy kept from being finalized in time, one that was revoked after its operations were
captured, and one with an NCCL call that does not return.

Raises:
    ValueError: the communicator is not ready yet, a capture in progress uses it, or it is borrowed
        and a buffer or window is registered with it.
    NcclTimeoutError: an operation or ncclCommFinalize exceeded the time limit. The communicator is
        closed.
    NcclError: the communicator has an asynchronous error that no operation has raised, or NCCL
        failed.)")
      .def("abort", &Communicator::abort, Release(),
           R"(Free the communicator immediately (ncclCommAbort).

Any thread can call it. It neither waits for other ranks nor notifies them: their operations with
this rank stay pending. Children that share resources of this communicator (split_share,
shrink_share) are aborted as well, the others stay usable. Aborting a closed communicator does
nothing.

Calls of other threads on the communicator are revoked first and raise an error (NCCL 2.28.7).
abort() waits 2 seconds for them to return. If one does not, the communicator is not freed. An older
NCCL frees it during that call, which is undefined behavior. NCCL itself waits without limit for
graphs that captured the communicator and for the work queued before its operations on their
streams. After 5 seconds abort() returns, and NCCL continues in the background. After a revocation
NCCL would not wait for graphs, so a communicator with captured operations is not freed before the
process exits.

Raises:
    ValueError: the communicator is borrowed (revoke() ends its operations, and its owner can abort
        it), or it shares the resources of its parent, whose operations NCCL's abort would end as
        well (use close()).
    NcclError: NCCL failed.)")
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__",
           [](Communicator& c, const py::object& exception, const py::object&, const py::object&) {
             const GilReleased released;
             if (exception.is_none()) return c.close();
             // Without exceptions of its own, because that of the block is raised.
             if (!c.borrowed()) return c.discard();
             try {
               c.close();
             } catch (const std::invalid_argument&) {
             }
           })
      .def_property_readonly("rank", &Communicator::rank, "This rank (ncclCommUserRank).")
      .def_property_readonly("nranks", &Communicator::nranks,
                             "The number of ranks (ncclCommCount).")
      .def_property_readonly("device", &Communicator::device,
                             "The device's ordinal (ncclCommCuDevice).")
      .def_property_readonly(
          "closed",
          [](Communicator& c) {
            c.ask_owner();
            return c.closed();
          },
          "Whether the communicator was closed or aborted. For a borrowed one, also by its owner.")
      .def_property_readonly("borrowed", &Communicator::borrowed,
                             "Whether it was created by borrow().")
      .def_property_readonly("revoked", &Communicator::revoked,
                             "Whether revoke() or shrink(abort=True) has ended its operations.")
      .def_property_readonly("library", &Communicator::shared_library,
                             "The Library of its provider, as pynccl.raw.load() returns it.")
      .def_property_readonly(
          "provider",
          [](const Communicator& c) {
            return c.library().memory() == Memory::kHost ? "host" : "cuda";
          },
          "The provider of the communicator, its streams and events: 'host' or 'cuda'.")
      .def_property_readonly(
          "handle",
          [](Communicator& c) {
            return reinterpret_cast<std::uintptr_t>(ncclComm_t(Communicator::Use(c)));
          },
          "The ncclComm_t as an integer, for C++ code and for pynccl.raw.")
      .def(
          "register",
          [](std::shared_ptr<Communicator> c, const py::object& buffer) {
            return std::make_unique<BufferRegistration>(std::move(c), buffer);
          },
          py::arg("buffer"),
          R"(Register a buffer for zero-copy transfers (ncclCommRegister).

Args:
    buffer: a contiguous tensor, an array or a Buffer in the memory of this communicator's device.

Returns:
    A Registration, which keeps the buffer alive. Closing it or the communicator deregisters the
    buffer.

Raises:
    TypeError, ValueError: an invalid argument.
    NcclError: NCCL failed.)")
      .def(
          "mem_alloc",
          [](Communicator& c, const py::object& shape, const py::object& dtype) {
            std::vector<std::int64_t> extents = extents_from_python(shape);
            const DType& element = dtype_from_python("dtype", dtype.ptr());
            const GilReleased released;
            return std::make_shared<Buffer>(c.shared_library(), c.device(), std::move(extents),
                                            element);
          },
          py::arg("shape"), py::arg("dtype") = "uint8",
          R"(Allocate memory for zero-copy transfers (ncclMemAlloc).

Args:
    shape: the shape in elements, an integer or a sequence of integers.
    dtype: the element type: a name ("float32"), a NumPy or torch dtype.

Returns:
    An uninitialized Buffer on this communicator's device. At least 1 byte is allocated.

Raises:
    TypeError, ValueError: an invalid argument: a negative shape, a size in bytes that does not fit,
        or a dtype that NCCL does not support.
    MissingFunctionError: the library is older than NCCL 2.19.
    NcclError: the memory cannot be allocated.)")
      .def("pre_mul_sum", &pre_mul_sum, py::arg("scalar"), py::arg("dtype"),
           py::keep_alive<0, 2>(),  // a tensor is read when the operation runs
           R"(Create a sum that scales the input of each rank first (ncclRedOpCreatePreMulSum).

Args:
    scalar: the factor for this rank's input: a number, rounded to the nearest value of dtype (ties
        to even), or a tensor of one element of dtype on this communicator's device, which is read
        when the operation runs.
    dtype: the dtype of the tensors to reduce: a name, a NumPy or torch dtype.

Returns:
    A RedOp for this communicator and this dtype. Closing it or the communicator frees it.

Raises:
    TypeError: scalar is neither a number nor a tensor.
    ValueError: dtype is not a dtype of NCCL, a number is out of its range, a tensor does not have
        exactly one element of it, or the communicator is closed.
    NcclError: NCCL failed.)")
      .def("__repr__", [](Communicator& c) {
        c.ask_owner();
        if (c.closed()) return std::string("<pynccl.nccl.Communicator closed>");
        if (c.pending() || c.known_rank() < 0)
          return std::string("<pynccl.nccl.Communicator not ready>");
        return "<pynccl.nccl.Communicator rank " + std::to_string(c.rank()) + " of " +
               std::to_string(c.nranks()) + " on " + c.library().path() +
               (c.borrowed() ? ", borrowed>" : ">");
      });
  m.def("check_creation", &check_creation, py::arg("nranks"), py::arg("rank"), py::arg("config"),
        py::arg("store"),
        "Check arguments of Communicator.from_store(). Returns nranks, rank, and the time limit of "
        "the wait for the unique id in seconds.");
  m.def("create_recovered", &create_recovered, py::arg("parent"), py::arg("lost"),
        py::arg("seconds"), py::arg("config"), py::arg("unique_id") = py::none(),
        "Create the communicator of the surviving ranks within a time limit and free its parent, "
        "after begin_recovery(); without an id, by a shrink or a split. For "
        "pynccl._internal.recovery.");
  m.def(
      "check_outside_group",
      [](const std::string& method) {
        if (Group::active()) throw py::value_error(method + ": it cannot be called inside group()");
      },
      py::arg("method"), "Raise ValueError, with the name of a method, inside group().");
  m.def(
      "can_agree",
      [](const Communicator& c) { return c.library().symbol("hostCommAgree") != nullptr; },
      py::arg("communicator"), "Whether the library can agree on the surviving ranks.");
  m.def("begin_recovery", &Communicator::begin_recovery, py::arg("communicator"),
        py::call_guard<GilReleased>(),
        "Revoke a communicator if NCCL supports it and it is not revoked yet.");
  m.def("agree", &Communicator::agree, py::arg("communicator"), py::arg("seconds"), py::arg("lost"),
        py::call_guard<GilReleased>(),
        "Let the library agree on the surviving ranks, and wait at most these seconds for ranks "
        "that are not in lost. Returns the lost ranks; None if the library cannot agree.");
}

}  // namespace pynccl::python

// The creation of communicators: from unique ids, from other communicators, and all ranks of a
// process at once.
#include <algorithm>

#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/convert/rank_argument.h"
#include "python/objects/bind.h"
#include "python/objects/communicator.h"
#include "python/objects/config.h"
#include "python/objects/group.h"
#include "python/objects/stores.h"

namespace pynccl::python {
namespace {

// A communicator that Python deletes without closing it is aborted, with a ResourceWarning.
class OwnedCommunicator : public Communicator {
 public:
  using Communicator::Communicator;
  ~OwnedCommunicator() override {
    if (closed() || pending()) return;
    const GilAcquired gil;
    const py::error_scope raised;  // an exception may be set
    if (PyErr_WarnEx(PyExc_ResourceWarning, "a pynccl Communicator was not closed; it is aborted",
                     1) != 0)
      PyErr_WriteUnraisable(nullptr);
    const GilReleased released;
    discard();
  }
};

std::shared_ptr<Communicator> make_owned(std::shared_ptr<Library> library,
                                         const Communicator::Options& options) {
  auto communicator =
      std::make_shared<OwnedCommunicator>(std::move(library), with_comparison(options));
  watch_store(communicator);
  return communicator;
}

std::shared_ptr<Communicator> make_with_store(std::shared_ptr<Library> library,
                                              Communicator::Options options,
                                              const py::object& store) {
  options.store = store_from_python(store);
  return make_owned(std::move(library), options);
}

// A communicator made from a parent; config None inherits the parent's.
std::shared_ptr<Communicator> make_child(Communicator& parent, const py::object& config) {
  Communicator::Options options =
      config.is_none() ? parent.inherited() : options_from_python(config, parent.device());
  options.store = parent.store();
  return make_owned(parent.shared_library(), options);
}

// The functions of pynccl.libraries that find libraries and devices, which set_resolvers() passes
// in. References for the life of the process.
struct Resolvers {
  PyObject* one = nullptr;
  PyObject* all = nullptr;
};

Resolvers resolvers;

void set_resolvers(const py::object& resolve, const py::object& resolve_all) {
  resolvers = {py::object(resolve).release().ptr(), py::object(resolve_all).release().ptr()};
}

py::tuple call_resolver(PyObject* resolver, const py::object& provider, const py::object& device) {
  if (!resolver) throw std::runtime_error("Communicator: pynccl.libraries is not imported");
  return py::handle(resolver)(provider, device);
}

// The library and the device's ordinal of a new communicator.
std::pair<std::shared_ptr<Library>, int> resolve(const py::object& provider,
                                                 const py::object& device) {
  const py::tuple found = call_resolver(resolvers.one, provider, device);
  return {py::cast<std::shared_ptr<Library>>(found[0]), py::cast<int>(found[1])};
}

// The number of ranks and this rank.
std::pair<int, int> size_and_rank_from_python(const py::object& nranks, const py::object& rank) {
  const int size = integer_from_python<int>("nranks", nranks.ptr());
  const int own = integer_from_python<int>("rank", rank.ptr());
  if (size < 1) throw py::value_error("nranks: " + std::to_string(size) + " is below 1");
  if (own < 0 || own >= size) throw_rank("rank", own, size);
  return {size, own};
}

// One id, or a list or tuple of them.
std::vector<ncclUniqueId> ids_from_python(const py::object& value, int nranks) {
  if (!py::isinstance<py::list>(value) && !py::isinstance<py::tuple>(value))
    return {unique_id_from_python("unique_id", value.ptr())};
  std::vector<ncclUniqueId> ids;
  for (const py::handle id : value) ids.push_back(unique_id_from_python("unique_id", id.ptr()));
  if (ids.empty()) throw py::value_error("unique_id: the sequence is empty");
  if (ids.size() > static_cast<std::size_t>(nranks))
    throw py::value_error("unique_id: " + std::to_string(ids.size()) + " ids for " +
                          std::to_string(nranks) + " ranks; at most one for each");
  return ids;
}

std::shared_ptr<Communicator> init(const py::object& nranks, const py::object& unique_id,
                                   const py::object& rank, const py::object& config,
                                   const py::object& provider, const py::object& device,
                                   const py::object& store) {
  const auto [size, own] = size_and_rank_from_python(nranks, rank);
  const std::vector<ncclUniqueId> ids = ids_from_python(unique_id, size);
  const auto [library, ordinal] = resolve(provider, device);
  auto communicator = make_with_store(library, options_from_python(config, ordinal), store);
  // config owns the strings that NCCL reads while the communicator is made.
  make_communicator(communicator, [size = size, own = own, ids, kept = hold(config)](
                                      Communicator& c) { c.begin_init(size, ids, own); });
  return communicator;
}

py::list init_all(const py::object& devices, const py::object& provider) {
  const py::tuple found = call_resolver(resolvers.all, provider, devices);
  const auto library = py::cast<std::shared_ptr<Library>>(found[0]);
  const auto ordinals = py::cast<std::vector<int>>(found[1]);
  std::vector<std::shared_ptr<Communicator>> ranks;
  {
    const GilReleased released;
    ranks = Communicator::init_all(library, ordinals, &make_owned);
  }
  return py::cast(ranks);
}

py::object split(const std::shared_ptr<Communicator>& parent, const py::object& color,
                 const py::object& key, const py::object& config) {
  int group = kSplitNoColor;
  if (!color.is_none()) {
    group = integer_from_python<int>("color", color.ptr());
    if (group < 0)
      throw py::value_error("color: " + std::to_string(group) +
                            " is negative; pass None for a rank without a new communicator");
  }
  const int order = integer_from_python<int>("key", key.ptr());
  auto child = make_child(*parent, config);
  make_communicator(child, [parent, group, order, kept = hold(config)](Communicator& c) {
    c.begin_split(*parent, group, order);
  });
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
  if (ranks.empty()) throw py::value_error("exclude: the sequence is empty");
  return ranks;
}

std::shared_ptr<Communicator> shrink(const std::shared_ptr<Communicator>& parent,
                                     const py::object& exclude, bool abort,
                                     const py::object& config) {
  const std::vector<int> excluded = excluded_from_python(*parent, exclude);
  auto child = make_child(*parent, config);
  make_communicator(child, [parent, excluded, abort, kept = hold(config)](Communicator& c) {
    c.begin_shrink(*parent, excluded, abort);
  });
  return child;
}

// Creates the communicator of the surviving ranks, and frees the parent.
std::shared_ptr<Communicator> make_recovered(const std::shared_ptr<Communicator>& parent,
                                             const std::vector<int>& lost, double seconds,
                                             const py::object& config) {
  auto child = make_child(*parent, config);
  const auto limit = child->limit_creation(seconds);
  make_communicator(child, [parent, lost, kept = hold(config)](Communicator& c) {
    c.begin_recovered(*parent, lost);
  });
  const GilReleased released;
  constexpr double kGrace = 1;  // for a library that ends the creation of a non-blocking one itself
  child->wait_ready(seconds + kGrace);
  child->limit_creation(limit);
  parent->discard();
  return child;
}

std::shared_ptr<Communicator> grow(const std::shared_ptr<Communicator>& parent,
                                   const py::object& nranks, const py::object& unique_id,
                                   const py::object& config) {
  const int size = integer_from_python<int>("nranks", nranks.ptr());
  if (size <= parent->nranks())
    throw py::value_error("nranks: " + std::to_string(size) + " must be above the present size " +
                          std::to_string(parent->nranks()));
  std::optional<ncclUniqueId> id;
  if (!unique_id.is_none()) id = unique_id_from_python("unique_id", unique_id.ptr());
  auto child = make_child(*parent, config);
  make_communicator(child, [parent, size, id, kept = hold(config)](Communicator& c) {
    c.begin_grow(*parent, size, id);
  });
  return child;
}

std::shared_ptr<Communicator> join(const py::object& nranks, const py::object& unique_id,
                                   const py::object& rank, const py::object& config,
                                   const py::object& provider, const py::object& device,
                                   const py::object& store) {
  const auto [size, own] = size_and_rank_from_python(nranks, rank);
  const ncclUniqueId id = unique_id_from_python("unique_id", unique_id.ptr());
  const auto [library, ordinal] = resolve(provider, device);
  auto communicator = make_with_store(library, options_from_python(config, ordinal), store);
  make_communicator(communicator, [size = size, own = own, id, kept = hold(config)](
                                      Communicator& c) { c.begin_join(size, id, own); });
  return communicator;
}

}  // namespace

void bind_resolvers(py::module_& m) {
  m.def("set_resolvers", &set_resolvers, py::arg("resolve"), py::arg("resolve_all"),
        R"(Set how Communicator finds libraries; pynccl.libraries calls it when it is imported.

Args:
    resolve: a function (provider, device) that returns a Library and an ordinal.
    resolve_all: a function (provider, devices) that returns a Library and a list of ordinals.)");
  m.def(
      "make_recovered", &make_recovered, py::arg("parent"), py::arg("lost"), py::arg("seconds"),
      py::arg("config"),
      R"(Create the communicator of the surviving ranks and free its parent; for pynccl._internal.recovery.

Args:
    parent: the communicator, after begin_recovery().
    lost: the ranks to exclude.
    seconds: the time limit.
    config: a Config; None inherits the parent's.

Returns:
    A Communicator.)");
}

void add_creation(CommunicatorClass& type) {
  type.def(py::init(&init), py::arg("nranks"), py::arg("unique_id"), py::arg("rank"), py::kw_only(),
           py::arg("config") = py::none(), py::arg("provider") = py::none(),
           py::arg("device") = py::none(), py::arg("store") = py::none())
      .def_static("init_all", &init_all, py::arg("devices"), py::kw_only(),
                  py::arg("provider") = py::none(),
                  R"(Make all ranks of a communicator in this process (ncclCommInitAll).

Args:
    devices: the number of ranks, or a sequence of one device per rank.
    provider: as for Communicator.

Returns:
    The communicators in the order of their ranks. Use them from one thread inside group(), or each
    from its own thread.

Raises:
    TypeError, ValueError: an invalid argument, or devices of different providers.
    LibraryNotFoundError: the library of the provider was not found.
    NcclError: NCCL failed.)")
      .def("split", &split, py::arg("color"), py::arg("key") = 0, py::kw_only(),
           py::arg("config") = py::none(),
           R"(Create a communicator of the ranks with the same color (ncclCommSplit).

All ranks of this communicator must call it.

Args:
    color: an integer from 0 on; None for a rank without a new communicator (NCCL_SPLIT_NOCOLOR).
    key: determines the order of the ranks in the new communicator; equal keys keep the present
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

Only the remaining ranks call it, all with the same ranks to exclude. They keep their order.

Args:
    exclude: the ranks to exclude, a sequence of at least one.
    abort: True aborts the operations in progress on this communicator first (NCCL_SHRINK_ABORT):
        use it when a rank is dead or an operation hangs. Afterwards this communicator can only be
        closed, aborted, or shrunk again. False requires that the issued operations can complete.
    config: a Config; None inherits this communicator's.

Returns:
    The new Communicator. The caller still has to close or abort this one.

Raises:
    TypeError, ValueError: an invalid argument, or this communicator is closed.
    MissingFunctionError: the library is older than NCCL 2.27.
    NcclError: a rank that is not excluded is dead, or the communicator has failed and abort is
        False.
    NcclTimeoutError: not all ranks joined within config.init_timeout.)")
      .def("grow", &grow, py::arg("nranks"), py::arg("unique_id") = py::none(), py::kw_only(),
           py::arg("config") = py::none(),
           R"(Create a communicator with more ranks (ncclCommGrow, NCCL 2.29).

All ranks of this communicator call it and keep their numbers; the new ranks call
Communicator.join() at the same time.

Args:
    nranks: the number of ranks of the new communicator, above the present number.
    unique_id: the UniqueId of get_unique_id() on the rank that made it; None on all others.
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
                  R"(Join a communicator that grows, as a new rank (ncclCommGrow, NCCL 2.29).

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

}  // namespace pynccl::python

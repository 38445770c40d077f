// How communicators are made: of unique ids, of other communicators, all of a process at once.
#include <algorithm>

#include "python/objects/bind.h"
#include "python/objects/communicator.h"
#include "python/objects/config.h"
#include "python/objects/group.h"

namespace pynccl::python {
namespace {

// A communicator that Python lets go of without closing it is aborted, with a ResourceWarning.
class OwnedCommunicator : public Communicator {
 public:
  using Communicator::Communicator;
  ~OwnedCommunicator() {
    if (closed() || pending()) return;
    const py::gil_scoped_acquire gil;
    const py::error_scope raised;  // this may run while an exception passes
    if (PyErr_WarnEx(PyExc_ResourceWarning, "a pynccl Communicator was not closed; it is aborted",
                     1) != 0)
      PyErr_WriteUnraisable(nullptr);
    const py::gil_scoped_release released;
    try {
      abort();
    } catch (...) {  // it failed before; there is nobody to tell
    }
  }
};

std::shared_ptr<Communicator> make(std::shared_ptr<Library> library,
                                   const Communicator::Options& options) {
  return std::make_shared<OwnedCommunicator>(std::move(library), options);
}

// One that is made of a parent; config None: as that is.
std::shared_ptr<Communicator> make_child(Communicator& parent, const py::object& config) {
  return make(parent.shared_library(),
              config.is_none() ? parent.inherited() : options_from_python(config, parent.device()));
}

// Which library and which device: by name in Python, where libraries are found.
std::pair<std::shared_ptr<Library>, int> resolve(const py::object& provider,
                                                 const py::object& device) {
  const py::tuple found = py::module_::import("pynccl.libraries").attr("resolve")(provider, device);
  return {py::cast<std::shared_ptr<Library>>(found[0]), py::cast<int>(found[1])};
}

// nranks and a rank below it.
std::pair<int, int> world_from_python(const py::object& nranks, const py::object& rank) {
  const int size = integer_from_python<int>("nranks", nranks.ptr());
  const int own = integer_from_python<int>("rank", rank.ptr());
  if (size < 1) throw py::value_error("nranks: " + std::to_string(size) + " is below 1");
  if (own < 0 || own >= size)
    throw py::value_error("rank: " + std::to_string(own) + " is not below nranks " +
                          std::to_string(size));
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
    throw py::value_error("unique_id: " + std::to_string(ids.size()) +
                          " ids are more than nranks " + std::to_string(nranks));
  return ids;
}

std::shared_ptr<Communicator> init(const py::object& nranks, const py::object& unique_id,
                                   const py::object& rank, const py::object& config,
                                   const py::object& provider, const py::object& device) {
  const auto [size, own] = world_from_python(nranks, rank);
  const std::vector<ncclUniqueId> ids = ids_from_python(unique_id, size);
  const auto [library, ordinal] = resolve(provider, device);
  auto communicator = make(library, options_from_python(config, ordinal));
  // config holds the strings that NCCL reads while the communicator is made.
  create(communicator,
         [size = size, own = own, ids, config](Communicator& c) { c.begin_init(size, ids, own); });
  return communicator;
}

py::list init_all(const py::object& devices, const py::object& provider) {
  const py::tuple found =
      py::module_::import("pynccl.libraries").attr("resolve_all")(provider, devices);
  const auto library = py::cast<std::shared_ptr<Library>>(found[0]);
  const auto ordinals = py::cast<std::vector<int>>(found[1]);
  std::vector<std::shared_ptr<Communicator>> ranks;
  {
    const py::gil_scoped_release released;
    ranks = Communicator::init_all(library, ordinals, &make);
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
                            " is negative; None leaves this rank out");
  }
  const int order = integer_from_python<int>("key", key.ptr());
  auto child = make_child(*parent, config);
  create(child,
         [parent, group, order, config](Communicator& c) { c.begin_split(*parent, group, order); });
  return group == kSplitNoColor ? py::object(py::none()) : py::cast(child);
}

std::vector<int> excluded_from_python(Communicator& parent, const py::object& exclude) {
  if (!py::isinstance<py::sequence>(exclude) || py::isinstance<py::str>(exclude))
    throw_type_error("exclude", "a sequence of ranks", exclude.ptr());
  std::vector<int> ranks;
  for (const py::handle item : exclude) {
    const int rank = integer_from_python<int>("exclude", item.ptr());
    const std::string text = "exclude: rank " + std::to_string(rank);
    if (rank < 0 || rank >= parent.nranks())
      throw py::value_error(text + " is not below nranks " + std::to_string(parent.nranks()));
    if (rank == parent.rank())
      throw py::value_error(text + " is this one; only the ranks that stay call shrink");
    if (std::find(ranks.begin(), ranks.end(), rank) != ranks.end())
      throw py::value_error(text + " is there twice");
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
  create(child, [parent, excluded, abort, config](Communicator& c) {
    c.begin_shrink(*parent, excluded, abort);
  });
  return child;
}

std::shared_ptr<Communicator> grow(const std::shared_ptr<Communicator>& parent,
                                   const py::object& nranks, const py::object& unique_id,
                                   const py::object& config) {
  const int size = integer_from_python<int>("nranks", nranks.ptr());
  if (size <= parent->nranks())
    throw py::value_error("nranks: " + std::to_string(size) + " is not above the " +
                          std::to_string(parent->nranks()) + " ranks that there are");
  std::optional<ncclUniqueId> id;
  if (!unique_id.is_none()) id = unique_id_from_python("unique_id", unique_id.ptr());
  auto child = make_child(*parent, config);
  create(child, [parent, size, id, config](Communicator& c) { c.begin_grow(*parent, size, id); });
  return child;
}

std::shared_ptr<Communicator> join(const py::object& nranks, const py::object& unique_id,
                                   const py::object& rank, const py::object& config,
                                   const py::object& provider, const py::object& device) {
  const auto [size, own] = world_from_python(nranks, rank);
  const ncclUniqueId id = unique_id_from_python("unique_id", unique_id.ptr());
  const auto [library, ordinal] = resolve(provider, device);
  auto communicator = make(library, options_from_python(config, ordinal));
  create(communicator,
         [size = size, own = own, id, config](Communicator& c) { c.begin_join(size, id, own); });
  return communicator;
}

}  // namespace

void add_creation(CommunicatorClass& type) {
  type.def(py::init(&init), py::arg("nranks"), py::arg("unique_id"), py::arg("rank"), py::kw_only(),
           py::arg("config") = py::none(), py::arg("provider") = py::none(),
           py::arg("device") = py::none())
      .def_static("init_all", &init_all, py::arg("devices"), py::kw_only(),
                  py::arg("provider") = py::none(),
                  R"(Make all ranks of a communicator in this process (ncclCommInitAll).

Args:
    devices: how many ranks, or one device for each of them.
    provider: as for Communicator.

Returns:
    The communicators in the order of ranks. Use them from one thread inside group(), or each from
    a thread of its own.)")
      .def("split", &split, py::arg("color"), py::arg("key") = 0, py::kw_only(),
           py::arg("config") = py::none(),
           R"(Make a communicator of the ranks with the same color (ncclCommSplit).

All ranks must call it.

Args:
    color: 0 or more; None leaves this rank out, and None is returned.
    key: orders the ranks of the new communicator; equal keys keep the order they have here.
    config: a Config; None inherits this communicator's.)")
      .def("shrink", &shrink, py::arg("exclude"), py::kw_only(), py::arg("abort") = false,
           py::arg("config") = py::none(),
           R"(Make a communicator without some of the ranks (ncclCommShrink, NCCL 2.27).

Only the ranks that stay call it, all with the same ranks to exclude. They keep their order.

Args:
    exclude: the ranks to leave out, at least one.
    abort: end what is under way on this communicator first (NCCL_SHRINK_ABORT): the way on when a
        rank is dead or an operation hangs. The communicator can then only be closed or aborted, or
        shrunk again. Without it, what was issued before must be able to finish.
    config: a Config; None inherits this communicator's.

Returns:
    The new Communicator. This one is to be closed or aborted by its user.

Raises:
    TypeError, ValueError: a wrong argument.
    NcclError: a rank that is not excluded is dead as well, or there was an error before and abort
        is not set.)")
      .def("grow", &grow, py::arg("nranks"), py::arg("unique_id") = py::none(), py::kw_only(),
           py::arg("config") = py::none(),
           R"(Make a communicator with more ranks (ncclCommGrow, NCCL 2.29).

All ranks call it, and keep their numbers; those that come call Communicator.join meanwhile.

Args:
    nranks: how many there will be.
    unique_id: of the rank that made it with get_unique_id(); None on all others.
    config: a Config; None inherits this communicator's.

Returns:
    The new Communicator. This one stays as it is.)")
      .def_static("join", &join, py::arg("nranks"), py::arg("unique_id"), py::arg("rank"),
                  py::kw_only(), py::arg("config") = py::none(), py::arg("provider") = py::none(),
                  py::arg("device") = py::none(),
                  R"(Come to a communicator that grows (ncclCommGrow, NCCL 2.29).

Args:
    nranks: how many ranks there will be.
    unique_id: what a rank of the growing communicator got from get_unique_id().
    rank: this one's number, from the old size on.
    config, provider, device: as for Communicator.

Returns:
    The new Communicator.)");
}

}  // namespace pynccl::python

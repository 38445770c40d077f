// The class Communicator: its life, its identity, its memory. The collectives are in
// collectives.cpp.
#include "core/communicator.h"

#include "python/bindings.h"
#include "python/buffer.h"
#include "python/collectives.h"
#include "python/config.h"
#include "python/group.h"
#include "python/red_op.h"

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

// Which library and which device: by name in Python, where libraries are found.
std::pair<std::shared_ptr<Library>, int> resolve(const py::object& provider,
                                                 const py::object& device) {
  const py::tuple found = py::module_::import("pynccl.libraries").attr("resolve")(provider, device);
  return {py::cast<std::shared_ptr<Library>>(found[0]), py::cast<int>(found[1])};
}

std::shared_ptr<Communicator> init(const py::object& nranks, const py::object& unique_id,
                                   const py::object& rank, const py::object& config,
                                   const py::object& provider, const py::object& device) {
  const int size = integer_from_python<int>("nranks", nranks.ptr());
  const int own = integer_from_python<int>("rank", rank.ptr());
  if (size < 1) throw py::value_error("nranks: " + std::to_string(size) + " is below 1");
  if (own < 0 || own >= size)
    throw py::value_error("rank: " + std::to_string(own) + " is not below nranks " +
                          std::to_string(size));
  const ncclUniqueId id = unique_id_from_python("unique_id", unique_id.ptr());
  const auto [library, ordinal] = resolve(provider, device);
  auto communicator = make(library, options_from_python(config, ordinal));
  // config holds the strings that NCCL reads while the communicator is made.
  create(communicator, [=](Communicator& c) { c.begin_init(size, id, own); });
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

py::object split(Communicator& parent, const py::object& color, const py::object& key,
                 const py::object& config) {
  int group = kSplitNoColor;
  if (!color.is_none()) {
    group = integer_from_python<int>("color", color.ptr());
    if (group < 0)
      throw py::value_error("color: " + std::to_string(group) +
                            " is negative; None leaves this rank out");
  }
  const int order = integer_from_python<int>("key", key.ptr());
  const Communicator::Options options =
      config.is_none() ? parent.inherited() : options_from_python(config, parent.device());
  auto child = make(parent.shared_library(), options);
  create(child, [=, &parent](Communicator& c) { c.begin_split(parent, group, order); });
  return group == kSplitNoColor ? py::object(py::none()) : py::cast(child);
}

// A buffer registered with a communicator, until it is closed or forgotten.
class Registration {
 public:
  Registration(std::shared_ptr<Communicator> communicator, const py::object& buffer)
      : communicator_(std::move(communicator)), buffer_(buffer) {
    const TensorView view = view_tensor("buffer", buffer.ptr(), nullptr, nullptr);
    check_placement(view, communicator_->library(), communicator_->device());
    const ncclComm_t comm = communicator_->handle();
    NCCL_CHECK(communicator_->library(), comm, communicator_->rank(), ncclCommRegister,
               (comm, view.data, view.nbytes(), &handle_));
    registered_ = true;
  }
  Registration(const Registration&) = delete;
  Registration& operator=(const Registration&) = delete;
  ~Registration() {
    try {
      close();
    } catch (...) {  // the communicator failed meanwhile, and its registrations with it
    }
  }

  std::uintptr_t handle() const { return reinterpret_cast<std::uintptr_t>(handle_); }

  void close() {
    if (!registered_) return;
    registered_ = false;
    if (communicator_->closed()) return;
    const ncclComm_t comm = communicator_->handle();
    NCCL_CHECK(communicator_->library(), comm, communicator_->rank(), ncclCommDeregister,
               (comm, handle_));
    buffer_ = py::none();
  }

 private:
  std::shared_ptr<Communicator> communicator_;
  py::object buffer_;
  void* handle_ = nullptr;
  bool registered_ = false;
};

// A shape: an integer or a sequence of them.
std::vector<std::int64_t> extents_from_python(const py::object& shape) {
  if (PyIndex_Check(shape.ptr())) return {integer_from_python<std::int64_t>("shape", shape.ptr())};
  if (!py::isinstance<py::sequence>(shape) || py::isinstance<py::str>(shape))
    throw_type_error("shape", "an integer or a sequence of integers", shape.ptr());
  std::vector<std::int64_t> extents;
  for (const py::handle extent : shape)
    extents.push_back(integer_from_python<std::int64_t>("shape", extent.ptr()));
  return extents;
}

py::object async_error(Communicator& c) {
  const ncclResult_t state = c.async_error();
  std::string text = "communicator";
  if (c.known_rank() >= 0) text += " of rank " + std::to_string(c.known_rank());
  const Library& library = c.library();
  text += std::string(": ") + library.nccl<&NcclTable::ncclGetErrorString>()(state);
  const char* last = library.nccl<&NcclTable::ncclGetLastError>()(c.handle());
  if (last && *last) text += std::string(": ") + last;
  return error_object(state, "ncclCommGetAsyncError", c.known_rank(), text);
}

}  // namespace

void bind_communicator(py::module_& m) {
  using Release = py::call_guard<py::gil_scoped_release>;

  py::class_<Registration>(m, "Registration",
                           "A buffer registered with a communicator (ncclCommRegister).")
      .def_property_readonly("handle", &Registration::handle, "NCCL's handle as an integer.")
      .def("close", &Registration::close, "Deregisters the buffer (ncclCommDeregister).")
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](Registration& r, const py::args&) { r.close(); });

  py::class_<Communicator, std::shared_ptr<Communicator>> type(m, "Communicator",
                                                               R"(One rank of a communicator.

Args:
    nranks: how many ranks there are.
    unique_id: the UniqueId that all of them have in common.
    rank: this one, from 0 to nranks - 1.
    config: a Config.
    provider: "cuda" for libnccl, "host" for hostnccl on CPUs; None takes the one that device says,
        else PYNCCL_PROVIDER from the environment, else "cuda" where a GPU can be used and "host"
        where not.
    device: the GPU as an integer or "cuda:1", or "cpu"; None is the thread's current device.

Making one waits for all ranks (ncclCommInitRankConfig), unless config.blocking is 0 or it happens
inside group(). Calls are not synchronised with each other: one thread at a time uses a
communicator; abort() may come from another one.

Raises:
    TypeError, ValueError: a wrong argument.
    NcclError: the ranks do not fit together, one of them died, or a deadline passed.)");
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
           py::arg("config") = py::none(), py::keep_alive<0, 1>(),
           R"(Make a communicator of the ranks with the same color (ncclCommSplit).

All ranks must call it.

Args:
    color: 0 or more; None leaves this rank out, and None is returned.
    key: orders the ranks of the new communicator; equal keys keep the order they have here.
    config: a Config; None inherits this communicator's.)")
      .def("finalize", &Communicator::finalize, Release(),
           "Waits until all that was issued is done (ncclCommFinalize); close() does it as well.")
      .def("close", &Communicator::close, Release(),
           "Lets what was issued finish and frees the communicator (ncclCommDestroy). Closing "
           "twice is no error.")
      .def("abort", &Communicator::abort, Release(),
           "Frees the communicator at once, from any thread; a call that blocks in it fails "
           "(ncclCommAbort).")
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__",
           [](Communicator& c, const py::object& exception, const py::object&, const py::object&) {
             const py::gil_scoped_release released;
             exception.is_none() ? c.close() : c.abort();
           })
      .def_property_readonly("rank", &Communicator::rank, "This rank (ncclCommUserRank).")
      .def_property_readonly("nranks", &Communicator::nranks,
                             "How many ranks there are (ncclCommCount).")
      .def_property_readonly("device", &Communicator::device,
                             "The device's ordinal (ncclCommCuDevice).")
      .def_property_readonly("closed", &Communicator::closed, "Whether it was closed or aborted.")
      .def_property_readonly("library", &Communicator::shared_library,
                             "The loaded NCCL, as pynccl.raw.load gives it.")
      .def_property_readonly(
          "handle",
          [](const Communicator& c) { return reinterpret_cast<std::uintptr_t>(c.handle()); },
          "The ncclComm_t as an integer, for one's own C++ and for pynccl.raw.")
      .def("async_error", &async_error,
           "The NcclError that the communicator met in the background, NcclInProgressError while "
           "it is being\n"
           "made, or None (ncclCommGetAsyncError).")
      .def(
          "register",
          [](std::shared_ptr<Communicator> c, const py::object& buffer) {
            return std::make_unique<Registration>(std::move(c), buffer);
          },
          py::arg("buffer"),
          "Registers a buffer for transfers without a copy (ncclCommRegister). Returns a "
          "Registration, whose\n"
          "close() undoes it.")
      .def(
          "mem_alloc",
          [](Communicator& c, const py::object& shape, const py::object& dtype) {
            return std::make_shared<Buffer>(c.shared_library(), c.device(),
                                            extents_from_python(shape),
                                            dtype_from_python("dtype", dtype.ptr()));
          },
          py::arg("shape"), py::arg("dtype") = "uint8",
          R"(Allocate memory that NCCL handles best (ncclMemAlloc).

Args:
    shape: elements, an integer or a sequence.
    dtype: a name ("float32"), a NumPy or torch dtype.

Returns:
    A Buffer on this communicator's device, not initialised.)")
      .def("pre_mul_sum", &pre_mul_sum, py::arg("scalar"), py::arg("dtype"),
           py::keep_alive<0, 2>(),  // a tensor is read when the operation runs
           R"(Make the operator that scales this rank's input and sums (ncclRedOpCreatePreMulSum).

Args:
    scalar: a number, or a tensor of one element on this communicator's device, read when the
        operation runs.
    dtype: the type of the tensors that it is for.)")
      .def("__repr__", [](Communicator& c) {
        if (c.closed()) return std::string("<pynccl.nccl.Communicator closed>");
        if (c.pending() || c.known_rank() < 0)
          return std::string("<pynccl.nccl.Communicator being made>");
        return "<pynccl.nccl.Communicator rank " + std::to_string(c.rank()) + " of " +
               std::to_string(c.nranks()) + " on " + c.library().path() + ">";
      });
  add_collectives(type);
}

}  // namespace pynccl::python

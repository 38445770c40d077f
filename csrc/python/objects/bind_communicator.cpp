// The class Communicator: its end, its identity, its buffers. How it is made and what becomes of it
// is in bind_communicator_creation.cpp and bind_communicator_life.cpp, the collectives are in
// collectives/.
#include "core/communicator.h"

#include "python/call/gil.h"
#include "python/convert/buffer.h"
#include "python/convert/red_op.h"
#include "python/objects/bind.h"
#include "python/objects/communicator.h"
#include "python/raw/structs.h"

namespace pynccl::python {
namespace {

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

}  // namespace

void bind_communicator(py::module_& m) {
  using Release = py::call_guard<py::gil_scoped_release>;

  py::class_<Registration>(m, "Registration",
                           "A buffer registered with a communicator (ncclCommRegister).")
      .def_property_readonly("handle", &Registration::handle, "NCCL's handle as an integer.")
      .def("close", &Registration::close, "Deregisters the buffer (ncclCommDeregister).")
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](Registration& r, const py::args&) { r.close(); });

  bind_memory_stats(m);
  CommunicatorClass type(m, "Communicator", R"(One rank of a communicator.

Args:
    nranks: how many ranks there are.
    unique_id: the UniqueId that all of them have in common; or a sequence of several, the same for
        all, by which very many ranks find each other faster (ncclCommInitRankScalable).
    rank: this one, from 0 to nranks - 1.
    config: a Config.
    provider: "cuda" for libnccl, "host" for hostnccl on CPUs; None takes the one that device says,
        else PYNCCL_PROVIDER from the environment, else "cuda" where a GPU can be used and "host"
        where not.
    device: the GPU as an integer or "cuda:1", or "cpu"; None is the thread's current device.

Making one waits for all ranks (ncclCommInitRankConfig), unless config.blocking is 0 or it happens
inside group(). Calls are not synchronised with each other: one thread at a time uses a
communicator; abort() and revoke() may come from another one. With config.blocking at 0, ready and
wait_ready() tell when what was called is done.

Raises:
    TypeError, ValueError: a wrong argument.
    NcclError: the ranks do not fit together, one of them died, or a deadline passed.)");
  add_creation(type);
  add_life(type);
  type.def("finalize", &Communicator::finalize, Release(),
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
            std::vector<std::int64_t> extents = extents_from_python(shape);
            const DType& element = dtype_from_python("dtype", dtype.ptr());
            const GilReleased released;
            return std::make_shared<Buffer>(c.shared_library(), c.device(), std::move(extents),
                                            element);
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
}

}  // namespace pynccl::python

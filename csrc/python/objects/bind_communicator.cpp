// The class Communicator: close and abort, rank and size, buffers and operators. Its creation is in
// bind_communicator_creation.cpp, its state in bind_communicator_life.cpp, the operations in
// collectives/.
#include "comm/communicator.h"
#include "python/call/gil.h"
#include "python/convert/buffer.h"
#include "python/convert/extents.h"
#include "python/convert/red_op.h"
#include "python/objects/bind.h"
#include "python/objects/communicator.h"
#include "python/raw/structs.h"

namespace pynccl::python {
namespace {

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
    NCCL_CHECK(communicator_->library(), comm, communicator_->rank(), ncclCommRegister,
               (comm, view.data, view.nbytes(), &handle_));
    registered_ = true;
    communicator_->add_registrations(1);
    buffer_ = py::make_tuple(buffer, owners.object());
  }
  BufferRegistration(const BufferRegistration&) = delete;
  BufferRegistration& operator=(const BufferRegistration&) = delete;
  ~BufferRegistration() {
    try {
      close();
    } catch (...) {  // a failed communicator frees its registrations itself
    }
  }

  std::uintptr_t handle() const { return reinterpret_cast<std::uintptr_t>(handle_); }

  void close() {
    if (!registered_) return;
    registered_ = false;
    communicator_->add_registrations(-1);
    if (communicator_->closed()) return;
    const Communicator::Use comm(*communicator_);
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

}  // namespace

void bind_communicator(py::module_& m) {
  using Release = py::call_guard<GilReleased>;

  py::class_<BufferRegistration>(
      m, "Registration", "The registration of a buffer with a communicator (ncclCommRegister).")
      .def_property_readonly("handle", &BufferRegistration::handle,
                             "NCCL's handle of the registration as an integer.")
      .def("close", &BufferRegistration::close,
           R"(Deregister the buffer (ncclCommDeregister). Closing twice is allowed.

Raises:
    NcclError: NCCL failed.)")
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__", [](BufferRegistration& r, const py::args&) { r.close(); });

  bind_memory_stats(m);
  bind_resolvers(m);
  CommunicatorClass type(
      m, "Communicator",
      R"(One rank of a communicator (ncclCommInitRankConfig, ncclCommInitRankScalable).

The constructor waits until all ranks have joined, unless config.blocking is 0 or it is called
inside group(). One thread at a time uses a communicator; abort() and revoke() can be called from
another one. With config.blocking at 0, ready and wait_ready() show when it is created, and when
split(), shrink(), finalize() and the like are done; until then other calls raise ValueError.
Operations return once NCCL has issued them, and close() aborts one that is still being created.

Args:
    nranks: the number of ranks.
    unique_id: the UniqueId that all ranks share; or a list or tuple of several, the same on all
        ranks, which speeds up the start of very many ranks (ncclCommInitRankScalable).
    rank: this rank, from 0 to nranks - 1.
    config: a Config, or None for the defaults.
    provider: "cuda" for libnccl.so.2, "host" for hostnccl on CPUs. None is the provider that device
        names, otherwise PYNCCL_PROVIDER from the environment, otherwise "cuda" if there is a
        usable GPU and "host" if there is none.
    device: the GPU as an integer or "cuda:1", or "cpu"; None is the thread's current device.
    store: a torch.distributed.Store of all ranks, or an object with its methods. When something
        takes longer than its time limit, the ranks ask each other through it which of them are
        missing. The communicators created from this one inherit it.

Raises:
    TypeError, ValueError: an invalid argument, or a setting that the library is too old for.
    LibraryNotFoundError: the library of the provider was not found.
    NcclError: the arguments of the ranks do not match, a rank died, or NCCL failed.
    NcclTimeoutError: not all ranks joined within config.init_timeout.)");
  add_creation(type);
  add_life(type);
  type.def("finalize", &Communicator::finalize, Release(),
           R"(Wait until all issued operations are done (ncclCommFinalize).

close() does it as well. Only close() and abort() may follow. NCCL is called when the operations are
done: an operation that takes longer than its time limit is revoked, and NCCL can do that only
before. NCCL then waits for the graphs that captured the communicator, also those of torch and CuPy.
The time limit of the communicator applies to both waits together. A non-blocking communicator calls
NCCL immediately and waits for neither.

Raises:
    ValueError: it is closed or borrowed.
    NcclTimeoutError: an operation, or NCCL, takes longer than the time limit.
    NcclError: NCCL failed, or a rank died.)")
      .def("close", &Communicator::close, Release(),
           R"(Wait for the issued operations and free the communicator (ncclCommDestroy).

Closing twice is allowed. Graphs that use the communicator cannot be launched afterwards. One with
an asynchronous error is aborted. A borrowed one waits for nothing and frees nothing: it only
forgets the handle.

It waits as finalize() does, with the same time limit, and then for NCCL to free the communicator,
for which NCCL may wait for other ranks: for the rest of the limit, or 5 seconds if that is longer;
NCCL continues in the background then. What NCCL may still use is not freed before the process ends: a communicator that a graph of torch or CuPy has kept from being finalized
in time, one that was revoked after operations of it were captured, and one that a call of NCCL does
not leave.

Raises:
    ValueError: it is not ready yet, or a capture in progress uses it; or it is borrowed, and a
        buffer or window is registered with it.
    NcclTimeoutError: an operation, or ncclCommFinalize, took longer than the time limit. The
        communicator is closed.
    NcclError: the communicator has an asynchronous error that no operation has raised, or NCCL
        failed.)")
      .def("abort", &Communicator::abort, Release(),
           R"(Free the communicator immediately (ncclCommAbort).

Any thread can call it. Calls of other threads on the communicator raise an error first: they are
revoked (NCCL 2.28.7). abort() waits 2 seconds for them to return. If one does not, the communicator
is not freed; an older NCCL frees it under that call, which is undefined. NCCL itself waits without
limit for graphs that captured the communicator, and for what is queued before its operations on
their streams; after 5 seconds abort() returns and NCCL continues in the background. After a
revocation NCCL would not wait for graphs: then a communicator with captured operations is not freed
before the process ends. Aborting a closed communicator does nothing.

Raises:
    ValueError: it is borrowed: revoke() ends its operations, its owner can abort it.
    NcclError: NCCL failed.)")
      .def("__enter__", [](const py::object& self) { return self; })
      .def("__exit__",
           [](Communicator& c, const py::object& exception, const py::object&, const py::object&) {
             const GilReleased released;
             if (exception.is_none()) return c.close();
             if (!c.borrowed()) return c.abort();
             try {
               c.close();
             } catch (const std::invalid_argument&) {  // the block's exception is raised
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
          "Whether the communicator was closed or aborted, if it is borrowed also by its owner.")
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
          "The provider of its streams, events and further communicators: 'host' or 'cuda'.")
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
    A Registration. It keeps the buffer alive; close() deregisters it, as closing the communicator
    does.

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
    A Buffer on this communicator's device, not initialised, of at least 1 byte.

Raises:
    TypeError, ValueError: an invalid argument: a negative shape, a size in bytes that does not fit,
        or a dtype that NCCL does not have.
    MissingFunctionError: the library is older than NCCL 2.19.
    NcclError: the memory cannot be allocated.)")
      .def("pre_mul_sum", &pre_mul_sum, py::arg("scalar"), py::arg("dtype"),
           py::keep_alive<0, 2>(),  // a tensor is read when the operation runs
           R"(Create an operator that scales this rank's input and sums (ncclRedOpCreatePreMulSum).

Args:
    scalar: a number, converted to dtype with rounding to nearest even; or a tensor of one element
        of dtype on this communicator's device, which is read when the operation runs.
    dtype: the dtype of the tensors to reduce: a name, a NumPy or torch dtype.

Returns:
    A RedOp for this communicator and this dtype. close() frees it, as closing the communicator
    does.

Raises:
    TypeError: scalar is neither a number nor a tensor.
    ValueError: dtype is not a dtype of NCCL, a number does not fit into it, a tensor does not have
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
}

}  // namespace pynccl::python

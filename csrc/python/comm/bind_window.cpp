// The classes Window and SymmetricBuffer, Communicator.register_window() and symmetric_empty().
#include "abi/constants.h"
#include "comm/device_memory.h"
#include "comm/window.h"
#include "python/call/bind.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/comm/communicator.h"
#include "python/comm/group.h"
#include "python/convert/buffer.h"
#include "python/convert/integer.h"

namespace pynccl::python {
namespace {

// The first NCCL version with a constant.
constexpr int since_of(const char* name) {
#define CONSTANT(version, constant, value) \
  if (std::string_view(name) == #constant) return version;
#include "abi/constants.inc"
#undef CONSTANT
  return 0;
}

int flags_from_python(std::optional<bool> symmetric, bool strict_ordering, bool gin_only,
                      bool cft_counted, const Library& library) {
  const bool restricted = gin_only || cft_counted;
  if (symmetric.value_or(false) && restricted)
    throw_value_error("symmetric", "it cannot be combined with gin_only or cft_counted");
  int flags = symmetric.value_or(!restricted) ? abi::NCCL_WIN_COLL_SYMMETRIC : 0;
  const auto add = [&](const char* keyword, bool wanted, int flag, int since) {
    if (!wanted) return;
    if (library.version() < since)
      throw_value_error(keyword, "needs NCCL ", version_text(since), ", the loaded one is ",
                        version_text(library.version()));
    flags |= flag;
  };
#define FLAG(constant) abi::constant, since_of(#constant)
  add("strict_ordering", strict_ordering, FLAG(NCCL_WIN_STRICT_ORDERING));
  add("gin_only", gin_only, FLAG(NCCL_WIN_GIN_ONLY));
  add("cft_counted", cft_counted, FLAG(NCCL_WIN_CFT_COUNTED));
#undef FLAG
  return flags;
}

std::shared_ptr<Window> register_window(std::shared_ptr<Communicator> communicator,
                                        const py::object& buffer, std::optional<bool> symmetric,
                                        bool strict_ordering, bool gin_only, bool cft_counted,
                                        const py::object& count, const py::object& dtype) {
  communicator->handle();
  const Library& library = communicator->library();
  library.nccl<&NcclTable::ncclCommWindowRegister>();
  const auto given = [](const py::object& o) { return o.is_none() ? nullptr : o.ptr(); };
  Owners owners;
  TensorView view = view_tensor(owners, "buffer", buffer.ptr(), given(count), given(dtype));
  check_placement(view, library, communicator->device());
  const int flags = flags_from_python(symmetric, strict_ordering, gin_only, cft_counted, library);
  return register_memory(std::move(communicator), view.data, view.nbytes(), flags,
                         hold(py::make_tuple(buffer, owners.object())));
}

constexpr char kRegisterDoc[] =
    R"(Register memory as a window that all ranks can write into (ncclCommWindowRegister, NCCL 2.27).

All ranks must call it, and register and close windows in the same order. The sizes may differ.
Large collectives on tensors inside windows are faster. Inside group() the window is ready when the
group ends.

The ranks exchange what they are about to register, so the call waits for all of them, and an
invalid argument on one rank raises an error on all. With NCCL 2.29 and 2.30 the call also sets up
one-sided operations. With a non-blocking communicator it does neither, and put_signal() cannot
check the sizes of the other ranks' windows.

Args:
    buffer: memory that NCCL can share between ranks: a Buffer of mem_alloc() or a tensor on it, at
        an address that is a multiple of 4096 bytes.
    symmetric: True promises that all ranks call collectives on this window at the same offset in it
        (NCCL_WIN_COLL_SYMMETRIC). NCCL requires it for one-sided operations. None is True unless
        gin_only or cft_counted is set.
    strict_ordering: NCCL_WIN_STRICT_ORDERING, NCCL 2.29.7.
    gin_only: NCCL_WIN_GIN_ONLY, NCCL 2.32.
    cft_counted: NCCL_WIN_CFT_COUNTED, NCCL 2.32.
    count, dtype: the number of elements and their type, if the buffer is an integer address.

Returns:
    A Window, which keeps the buffer alive. If it is deleted without close(), the memory stays
    registered until the communicator is closed, since the ranks must close windows in the same
    order.

Raises:
    TypeError: an invalid argument; nothing was registered.
    ValueError: a flag that the library does not support yet, or the communicator is closed. On all
        ranks, if it applies to one of them: the buffer has no elements, is in memory that NCCL
        cannot share, or is at the address of an open window; the buffers are at different offsets
        in their allocations; or the ranks have different windows open. No rank has registered
        anything.
    MissingFunctionError: the library is older than NCCL 2.27.
    NcclError: NCCL cannot share the memory of a rank, or failed. No rank has a window then.)";

py::object address_or_none(const void* pointer) {
  if (!pointer) return py::none();
  return py::int_(reinterpret_cast<std::uintptr_t>(pointer));
}

std::size_t offset_from_python(const py::object& offset) {
  return integer_from_python<std::size_t>("offset", offset.ptr());
}

// A view of a rank's memory in a window, from an offset in bytes; without a shape, to its end.
std::shared_ptr<Buffer> view_peer(const std::shared_ptr<Window>& window, int rank,
                                  std::size_t offset,
                                  std::optional<std::vector<std::int64_t>> shape,
                                  const DType& dtype) {
  const auto& communicator = window->communicator();
  const auto [data, size] = [&] {
    const GilReleased released;
    void* const pointer = window->peer_pointer(rank, offset);  // also checks the window
    return std::pair(pointer, window->nbytes_of(rank));
  }();
  if (!data)
    throw_value_error("rank", "this rank cannot load from and store to the memory of rank ", rank);
  if (reinterpret_cast<std::uintptr_t>(data) % dtype.size() != 0)
    throw_value_error("offset", offset, " is not a multiple of the ", dtype.size(), " bytes of ",
                      dtype.name);
  if (!shape) {
    if ((size - offset) % dtype.size() != 0)
      throw_value_error("dtype", "the ", size - offset, " bytes of the memory of rank ", rank,
                        " are not a whole number of elements of ", dtype.name);
    shape = {static_cast<std::int64_t>((size - offset) / dtype.size())};
  }
  if (Buffer::bytes_of(*shape, dtype) > size - offset)
    throw_value_error("shape", "its ", Buffer::bytes_of(*shape, dtype), " bytes after offset ",
                      offset, " end after the window of rank ", rank, ", which has ", size,
                      " bytes");
  return std::make_shared<Buffer>(communicator->shared_library(), communicator->device(),
                                  std::move(*shape), dtype, data, window,
                                  [open = window.get()] { open->handle(); });
}

std::shared_ptr<Buffer> peer(const std::shared_ptr<Window>& window, const py::object& rank,
                             const py::object& offset, const py::object& shape,
                             const py::object& dtype) {
  const int number = rank_from_python("rank", rank.ptr(), window->communicator()->nranks());
  std::optional<std::vector<std::int64_t>> extents;
  if (!shape.is_none()) extents = extents_from_python(shape);
  const py::object element = dtype.is_none() ? py::object(py::str("uint8")) : dtype;
  return view_peer(window, number, offset_from_python(offset), std::move(extents),
                   dtype_from_python("dtype", element.ptr()));
}

// Returns an array of addresses in device memory.
std::shared_ptr<Buffer> peer_pointers(const std::shared_ptr<Window>& window,
                                      const py::object& offset) {
  Communicator& communicator = *window->communicator();
  const std::size_t bytes = offset_from_python(offset);
  const DType& element = dtype_from_python("dtype", py::str("uint64").ptr());
  const GilReleased released;
  std::vector<std::uint64_t> addresses;
  addresses.reserve(static_cast<std::size_t>(communicator.nranks()));
  for (int rank = 0; rank < communicator.nranks(); ++rank)
    addresses.push_back(reinterpret_cast<std::uintptr_t>(window->peer_pointer(rank, bytes)));
  auto buffer = std::make_shared<Buffer>(
      communicator.shared_library(), communicator.device(),
      std::vector<std::int64_t>{static_cast<std::int64_t>(addresses.size())}, element);
  copy_to_device(communicator.shared_library(), communicator.device(), buffer->data(),
                 addresses.data(), buffer->nbytes());
  return buffer;
}

// The window owns the memory, without a reference to this object.
class SymmetricBuffer : public Buffer {
 public:
  SymmetricBuffer(const std::shared_ptr<Buffer>& memory, std::shared_ptr<Window> window)
      : Buffer(window->communicator()->shared_library(), memory->device_id(), memory->shape(),
               memory->dtype(), memory->data(), memory),
        memory_(memory),
        window_(std::move(window)) {}

  const std::shared_ptr<Window>& window() const { return window_; }
  void close() {
    window_->close();
    Buffer::close();
    memory_->close();
  }

 private:
  std::shared_ptr<Buffer> memory_;
  std::shared_ptr<Window> window_;
};

std::shared_ptr<SymmetricBuffer> symmetric_empty(const std::shared_ptr<Communicator>& communicator,
                                                 const py::object& shape, const py::object& dtype) {
  communicator->handle();
  communicator->library().nccl<&NcclTable::ncclCommWindowRegister>();
  std::vector<std::int64_t> extents = extents_from_python(shape);
  const DType& element = dtype_from_python("dtype", dtype.ptr());
  if (Buffer::bytes_of(extents, element) == 0) throw_value_error("shape", "it has no elements");
  std::shared_ptr<Buffer> memory;
  {
    const GilReleased released;
    memory = std::make_shared<Buffer>(communicator->shared_library(), communicator->device(),
                                      std::move(extents), element);
  }
  auto window = register_memory(communicator, memory->data(), memory->nbytes(),
                                abi::NCCL_WIN_COLL_SYMMETRIC, memory);
  return std::make_shared<SymmetricBuffer>(memory, std::move(window));
}

constexpr char kSymmetricDoc[] =
    R"(Memory that is registered on all ranks of a communicator, with a shape and a dtype.

Created by Communicator.symmetric_empty(). It is a Buffer: torch.from_dlpack(), numpy.from_dlpack()
and cupy.from_dlpack() create tensors on it, and collectives accept it directly.)";

}  // namespace

std::shared_ptr<Window> register_memory(std::shared_ptr<Communicator> communicator, void* address,
                                        std::size_t nbytes, int flags,
                                        std::shared_ptr<void> memory) {
  auto window = make_warning<Window>(
      "a pynccl Window was not closed; it stays registered until its communicator is closed",
      std::move(communicator), address, nbytes, flags, std::move(memory));
  if (Group* group = Group::active()) {
    group->record(window);
    return window;
  }
  const GilReleased released;
  Window::register_all({window.get()});
  return window;
}

void bind_window(py::module_& m) {
  const auto as_integer = [](const void* pointer) {
    return reinterpret_cast<std::uintptr_t>(pointer);
  };
  py::class_<Window, std::shared_ptr<Window>> type(
      m, "Window",
      "Memory that is registered on all ranks (ncclWindow_t). Created by "
      "Communicator.register_window().",
      py::release_gil_before_calling_cpp_dtor());
  add_closing(type);
  type.def_property_readonly(
          "handle", [=](const Window& w) { return as_integer(w.handle()); },
          "The ncclWindow_t as an integer; 0 if NCCL cannot share the memory between the ranks.")
      .def_property_readonly(
          "address", [=](const Window& w) { return as_integer(w.address()); },
          "The address of this rank's memory as an integer.")
      .def_property_readonly("nbytes", &Window::nbytes, "The size of this rank's memory in bytes.")
      .def_property_readonly("closed", &Window::closed,
                             "Whether the window or its communicator is closed.")
      .def(
          "user_pointer", [=](const Window& w) { return as_integer(w.user_pointer()); },
          "The address of this rank's memory as NCCL returns it (ncclWinGetUserPtr, NCCL 2.29).\n\n"
          "Raises:\n    ValueError: the window is closed.\n    MissingFunctionError: the library "
          "is older than NCCL 2.29.")
      .def("close", &Window::close, py::call_guard<GilReleased>(),
           R"(Wait for the users of the window and deregister it (ncclCommWindowDeregister).

On GPUs it waits for all work on the device, on CPUs for the puts of this rank into the window.

All ranks must close their windows in the same order, each after the other ranks have finished
writing into its window. Closing twice is allowed.

Raises:
    ValueError: the window is being registered, or a graph is being captured.
    NcclError: NCCL failed.)")
      .def("peer", &peer, py::arg("rank"), py::arg("offset") = 0, py::arg("shape") = py::none(),
           py::arg("dtype") = py::none(),
           R"(The memory of a rank in this window (ncclGetPeerDevicePointer, NCCL 2.29).

Loads and stores access the memory of that rank directly. They are not ordered with its work: use
barriers, signals or collectives.

Args:
    rank: the rank in the communicator; this rank is allowed.
    offset: the beginning of the view, in bytes from the beginning of that rank's memory.
    shape: the shape in elements; None is one dimension to the end of that rank's memory.
    dtype: the element type; None is "uint8".

Returns:
    A Buffer that does not own the memory but keeps the window alive. Tensors on it must not be used
    after the window is closed.

Raises:
    TypeError: an invalid argument.
    ValueError: rank is out of range, its memory cannot be accessed, the view ends outside it or is
        misaligned, or the window is closed or still being registered.
    MissingFunctionError: the library is older than NCCL 2.29.
    NcclError: NCCL failed.)")
      .def(
          "lsa_pointer",
          [](const Window& w, const py::object& lsa_rank, const py::object& offset) {
            return address_or_none(w.lsa_pointer(
                integer_from_python<int>("lsa_rank", lsa_rank.ptr()), offset_from_python(offset)));
          },
          py::arg("lsa_rank"), py::arg("offset") = 0,
          R"(The address of the memory of a rank of the LSA team (ncclGetLsaDevicePointer, NCCL 2.29).

Args:
    lsa_rank: the rank in Communicator.team_lsa().
    offset: the offset in bytes from the beginning of that rank's memory.

Returns:
    The address as an integer; None if NCCL cannot share the memory between the ranks.

Raises:
    TypeError: an invalid argument.
    ValueError: lsa_rank is out of range, the offset is outside its memory, or the window is closed
        or still being registered.
    MissingFunctionError: the library is older than NCCL 2.29.
    NcclError: NCCL failed.)")
      .def(
          "peer_pointer",
          [](const Window& w, const py::object& rank, const py::object& offset) {
            const int number = rank_from_python("rank", rank.ptr(), w.communicator()->nranks());
            return address_or_none(w.peer_pointer(number, offset_from_python(offset)));
          },
          py::arg("rank"), py::arg("offset") = 0,
          R"(The address of the memory of a rank (ncclGetPeerDevicePointer, NCCL 2.29).

Args:
    rank: the rank in the communicator.
    offset: the offset in bytes from the beginning of that rank's memory.

Returns:
    The address as an integer; None if this rank cannot load from and store to that memory.

Raises:
    TypeError: an invalid argument.
    ValueError: rank is out of range, the offset is outside its memory, or the window is closed or
        still being registered.
    MissingFunctionError: the library is older than NCCL 2.29.
    NcclError: NCCL failed.)")
      .def("peer_pointers", &peer_pointers, py::arg("offset") = 0,
           R"(The addresses of the memory of all ranks, in device memory, for kernels.

Args:
    offset: the offset in bytes from the beginning of each rank's memory.

Returns:
    A Buffer of nranks elements of uint64, by rank; 0 if this rank cannot load from and store to
    that memory.

Raises:
    TypeError: offset is not an integer.
    ValueError: offset is outside a rank's memory, or the window is closed or still being
        registered.
    MissingFunctionError: the library is older than NCCL 2.29.
    NcclError, DriverError: NCCL or the driver failed.)")
      .def(
          "multimem_pointer",
          [](const Window& w, const py::object& offset) {
            const std::size_t bytes = offset_from_python(offset);
            const void* pointer = [&] {
              const GilReleased released;
              return w.multimem_pointer(bytes);
            }();
            return address_or_none(pointer);
          },
          py::arg("offset") = 0,
          R"(The address for multimem instructions on the memory of the LSA team.

Equivalent to ncclGetLsaMultimemDevicePointer (NCCL 2.29). The multicast object of the team is
created by the first call, or by a device communicator with lsa_multimem=True. All ranks of the team
must take part in that call.

Args:
    offset: the offset in bytes from the beginning of each rank's memory.

Returns:
    The address as an integer; None if the devices do not support multicast, and on CPUs.

Raises:
    TypeError: offset is not an integer.
    ValueError: offset is outside this rank's memory, or the window is closed or still being
        registered.
    MissingFunctionError: the library is older than NCCL 2.29.
    NcclError: NCCL failed.)")
      .def("__repr__", [](const Window& w) {
        if (w.closed()) return std::string("<pynccl.nccl.Window closed>");
        return "<pynccl.nccl.Window of " + std::to_string(w.nbytes()) + " bytes>";
      });

  add_method<Communicator>("register_window", &register_window, py::arg("buffer"), py::kw_only(),
                           py::arg("symmetric") = py::none(), py::arg("strict_ordering") = false,
                           py::arg("gin_only") = false, py::arg("cft_counted") = false,
                           py::arg("count") = py::none(), py::arg("dtype") = py::none(),
                           kRegisterDoc);

  py::class_<SymmetricBuffer, Buffer, std::shared_ptr<SymmetricBuffer>> symmetric(
      m, "SymmetricBuffer", kSymmetricDoc, py::release_gil_before_calling_cpp_dtor());
  add_closing(symmetric);
  symmetric.def_property_readonly("window", &SymmetricBuffer::window, "The Window over the memory.")
      .def(
          "peer",
          [](const SymmetricBuffer& b, const py::object& rank) {
            const auto& window = b.window();
            return view_peer(window,
                             rank_from_python("rank", rank.ptr(), window->communicator()->nranks()),
                             0, b.shape(), b.dtype());
          },
          py::arg("rank"),
          R"(The memory of a rank, with the same shape and dtype. See Window.peer().

Args:
    rank: the rank in the communicator.

Raises:
    TypeError: rank is not an integer.
    ValueError: rank is out of range, its memory is smaller or cannot be accessed, or the buffer is
        closed or still being registered.)")
      .def("close", &SymmetricBuffer::close, py::call_guard<GilReleased>(),
           R"(Close the window and free the memory. Closing twice is allowed.

All ranks must close their windows in the same order, each after the other ranks have finished using
its memory. No tensor may use the memory after close().

Raises:
    ValueError: the window is being registered, or a graph is being captured.
    NcclError: NCCL failed.)");

  add_method<Communicator>(
      "symmetric_empty", &symmetric_empty, py::arg("shape"), py::arg("dtype") = "float32",
      R"(Allocate memory and register it on all ranks (ncclMemAlloc, ncclCommWindowRegister).

As with register_window(), all ranks must call it, the call waits for all of them, and inside
group() the memory is registered when the group ends.

Args:
    shape: the shape in elements, an integer or a sequence of integers; at least one element.
    dtype: the element type: a name ("float32"), a NumPy or torch dtype.

Returns:
    An uninitialized SymmetricBuffer. If it is deleted without close(), the memory stays registered
    until the communicator is closed.

Raises:
    TypeError: an invalid argument.
    ValueError: an invalid argument, or as for register_window().
    MissingFunctionError: the library is older than NCCL 2.27.
    NcclError: the memory cannot be allocated, or NCCL failed.)");
}

}  // namespace pynccl::python

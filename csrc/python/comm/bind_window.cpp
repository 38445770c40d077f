// The class Window and Communicator.register_window().
#include "abi/constants.h"
#include "comm/window.h"
#include "python/call/bind.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/comm/communicator.h"
#include "python/comm/group.h"
#include "python/convert/tensor.h"

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
    throw py::value_error("symmetric: it cannot be combined with gin_only or cft_counted");
  int flags = symmetric.value_or(!restricted) ? abi::NCCL_WIN_COLL_SYMMETRIC : 0;
  const auto add = [&](const char* keyword, bool wanted, int flag, int since) {
    if (!wanted) return;
    if (library.version() < since)
      throw py::value_error(std::string(keyword) + ": needs NCCL " + version_text(since) +
                            ", the loaded one is " + version_text(library.version()));
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
      .def("__repr__", [](const Window& w) {
        if (w.closed()) return std::string("<pynccl.nccl.Window closed>");
        return "<pynccl.nccl.Window of " + std::to_string(w.nbytes()) + " bytes>";
      });

  add_method<Communicator>("register_window", &register_window, py::arg("buffer"), py::kw_only(),
                           py::arg("symmetric") = py::none(), py::arg("strict_ordering") = false,
                           py::arg("gin_only") = false, py::arg("cft_counted") = false,
                           py::arg("count") = py::none(), py::arg("dtype") = py::none(),
                           kRegisterDoc);
}

}  // namespace pynccl::python

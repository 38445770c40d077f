// The class UniqueId: the 128 bytes that the ranks of a communicator share.
#include <cstring>

#include "nccl/error.h"
#include "python/call/bind.h"
#include "python/call/gil.h"
#include "python/raw/structs.h"

namespace pynccl::python {
namespace {

py::bytes bytes_of(const ncclUniqueId& id) { return py::bytes(id.internal, kUniqueIdBytes); }

}  // namespace

ncclUniqueId unique_id_from_python(const char* name, PyObject* value) {
  if (py::isinstance<ncclUniqueId>(value)) return py::cast<ncclUniqueId>(py::handle(value));
  Py_buffer view;
  if (PyObject_GetBuffer(value, &view, PyBUF_SIMPLE) != 0) {
    PyErr_Clear();
    throw_type_error(name, "a UniqueId or 128 bytes", value);
  }
  ncclUniqueId id;
  const Py_ssize_t size = view.len;
  if (size == kUniqueIdBytes) std::memcpy(id.internal, view.buf, kUniqueIdBytes);
  PyBuffer_Release(&view);
  if (size != kUniqueIdBytes)
    throw py::value_error(std::string(name) + ": has " + std::to_string(size) +
                          " bytes, a UniqueId has " + std::to_string(kUniqueIdBytes));
  return id;
}

void bind_unique_id(py::module_& m) {
  py::class_<ncclUniqueId>(m, "UniqueId",
                           R"(The id of a new communicator (ncclUniqueId).

One rank creates it with get_unique_id() and sends it to the others by any means. bytes(id) returns
its 128 bytes, UniqueId(data) restores it from them, and it can be pickled.

Args:
    data: 128 bytes, or a UniqueId.

Raises:
    TypeError: data is neither a UniqueId nor bytes.
    ValueError: data is not 128 bytes long.)")
      .def(py::init(
               [](const py::object& data) { return unique_id_from_python("data", data.ptr()); }),
           py::arg("data"))
      .def("__bytes__", &bytes_of)
      .def("__len__", [](const ncclUniqueId&) { return kUniqueIdBytes; })
      .def("__eq__",
           [](const ncclUniqueId& a, const py::object& other) {
             return py::isinstance<ncclUniqueId>(other) &&
                    std::memcmp(a.internal, py::cast<ncclUniqueId>(other).internal,
                                kUniqueIdBytes) == 0;
           })
      .def("__hash__", [](const ncclUniqueId& id) { return py::hash(bytes_of(id)); })
      .def("__repr__",
           [](const ncclUniqueId& id) {
             return "<pynccl.nccl.UniqueId " +
                    py::cast<std::string>(bytes_of(id).attr("hex")()).substr(0, 16) + "...>";
           })
      .def(py::pickle(
          [](const ncclUniqueId& id) { return bytes_of(id); },
          [](const py::bytes& data) { return unique_id_from_python("data", data.ptr()); }));
  m.def(
      "get_unique_id",
      [](const Library& library) {
        ncclUniqueId id;
        const GilReleased released;
        NCCL_CHECK(library, nullptr, -1, ncclGetUniqueId, (&id));
        return id;
      },
      py::arg("library"), "Create a UniqueId (ncclGetUniqueId).");
}

}  // namespace pynccl::python

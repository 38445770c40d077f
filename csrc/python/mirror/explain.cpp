#include "python/mirror/explain.h"

namespace pynccl::python::mirror {

void explain(const py::object& comm_stream, PyObject* kind) {
  py::error_already_set raised;
  try {
    if (is_library_error(raised))
      raise(comm_stream.attr("explain")(py::handle(kind), raised.value()));
    else
      raised.restore();
  } catch (py::error_already_set& failed) {
    failed.restore();
  }
}

}  // namespace pynccl::python::mirror

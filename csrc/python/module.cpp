// The extension module pynccl._C.
#include "nccl/barrier.h"
#include "python/call/bind.h"
#include "python/call/errors.h"
#include "python/call/fastcall.h"
#include "python/convert/red_op.h"
#include "watch/observers.h"

PYBIND11_MODULE(_C_bindings, m) {
  using namespace pynccl::python;
  m.attr("__version__") = PYNCCL_VERSION;
  m.doc() = "NCCL called directly; see pynccl.raw and pynccl.nccl.";
  pynccl::prepare_heavy_barrier();
  pynccl::add_observers();
  bind_errors(m);
  bind_structs(m);
  bind_library(m);
  bind_red_op(m);
  bind_stream(m);
  bind_config(m);
  bind_buffer(m);
  bind_communicator(m);
  bind_deadlines(m);
  bind_inquiry(m);
  bind_flight_record(m);
  bind_extension(m);
  bind_window(m);
  bind_device_comm(m);
  bind_group(m);
  bind_trace(m);
  bind_checksum(m);
  bind_collectives(m);
  bind_one_sided(m);
  mirror::bind_comm_stream(m);
  mirror::bind_work(m);
  mirror::bind_process_group(m);
  mirror::bind_fast_function(m);
  mirror::bind_p2p_op(m);
  check_instance_layout<RedOp>(m.attr("RedOp").attr("SUM"));  // held by a shared_ptr
}

// The extension keeps one state per process. Its threads and caches belong to the main interpreter.
extern "C" PYBIND11_EXPORT PyObject* PyInit__C() {
  if (PyInterpreterState_Get() == PyInterpreterState_Main()) return PyInit__C_bindings();
  PyErr_SetString(PyExc_ImportError, "pynccl._C cannot be imported in a subinterpreter");
  return nullptr;
}

// The C++ header of pynccl: the ncclComm_t of a Python Communicator and the functions of its NCCL,
// without linking NCCL. C++17; the include path is pynccl.get_include().
//
//     void run(pynccl::CommunicatorRef comm, ...) {
//       const auto all_reduce = PYNCCL_GET(comm, ncclAllReduce);
//       comm.check(all_reduce(send, recv, n, ncclFloat32, ncclSum, comm.handle(), stream),
//                  "ncclAllReduce");
//     }
//
// Types. If nccl.h is included before this file, they are nccl.h's, otherwise pynccl's declarations
// of the same ABI. pynccl::types contains the common ones in both cases. The same holds for cuda.h
// and PYNCCL_GET_DRIVER.
//
// Lifetime. A CommunicatorRef keeps the Python object alive but not open: after close() or abort(),
// handle() throws. NCCL's rules apply to calls with a handle: only one thread at a time may use a
// communicator, and it must not be closed during a call. Destroy all references before the
// interpreter exits.
//
// Order. Work that is enqueued on a stream through this header is ordered with pynccl's work on
// that stream. Inside Python's group(), pynccl collects its operations and calls NCCL at the end,
// but a call through this header goes to NCCL immediately.
#pragma once

#include <Python.h>

#include <cstddef>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>

#include "capsule.h"
#include "functions.h"

#ifdef NCCL_MAJOR
#define PYNCCL_NCCL_SCOPE
#define PYNCCL_NCCL_FUNCTION(name) std::remove_pointer_t<decltype(&::name)>
#else
#define PYNCCL_NCCL_SCOPE ::pynccl::abi
#define PYNCCL_NCCL_FUNCTION(name) ::pynccl::abi::functions::name
#endif

#ifdef CUDA_VERSION
#define PYNCCL_DRIVER_FUNCTION(name) std::remove_pointer_t<decltype(&::name)>
#else
#define PYNCCL_DRIVER_FUNCTION(name) ::pynccl::abi::functions::name
#endif

// The nccl.h function with this name and its type. The look-up takes longer than a call, so store
// the pointer. It is valid as long as the CommunicatorRef.
#define PYNCCL_GET(comm, name) ((comm).get<PYNCCL_NCCL_FUNCTION(name)>(#name))
// The same for a stream call of cuda.h.
#define PYNCCL_GET_DRIVER(comm, name) ((comm).get_driver<PYNCCL_DRIVER_FUNCTION(name)>(#name))

namespace pynccl {

// NCCL's common types and values, from nccl.h or from pynccl.
namespace types {
using PYNCCL_NCCL_SCOPE::cudaStream_t;
using PYNCCL_NCCL_SCOPE::ncclComm_t;
using PYNCCL_NCCL_SCOPE::ncclDataType_t;
using PYNCCL_NCCL_SCOPE::ncclRedOp_t;
using PYNCCL_NCCL_SCOPE::ncclResult_t;

using PYNCCL_NCCL_SCOPE::ncclInProgress;
using PYNCCL_NCCL_SCOPE::ncclSuccess;

using PYNCCL_NCCL_SCOPE::ncclAvg;
using PYNCCL_NCCL_SCOPE::ncclMax;
using PYNCCL_NCCL_SCOPE::ncclMin;
using PYNCCL_NCCL_SCOPE::ncclProd;
using PYNCCL_NCCL_SCOPE::ncclSum;

using PYNCCL_NCCL_SCOPE::ncclBfloat16;
using PYNCCL_NCCL_SCOPE::ncclFloat16;
using PYNCCL_NCCL_SCOPE::ncclFloat32;
using PYNCCL_NCCL_SCOPE::ncclFloat64;
using PYNCCL_NCCL_SCOPE::ncclInt32;
using PYNCCL_NCCL_SCOPE::ncclInt64;
using PYNCCL_NCCL_SCOPE::ncclInt8;
using PYNCCL_NCCL_SCOPE::ncclUint32;
using PYNCCL_NCCL_SCOPE::ncclUint64;
using PYNCCL_NCCL_SCOPE::ncclUint8;
}  // namespace types

// An NCCL function that returned neither ncclSuccess nor ncclInProgress.
class NcclError : public std::runtime_error {
 public:
  NcclError(int result, std::string name, int own_rank, const std::string& message)
      : std::runtime_error(message), code(result), function(std::move(name)), rank(own_rank) {}

  int code;  // the ncclResult_t
  std::string function;
  int rank;
};

namespace detail {

// Clears the current Python exception and returns its text.
inline std::string take_python_error() {
#if PY_VERSION_HEX >= 0x030c0000
  PyObject* value = PyErr_GetRaisedException();
#else
  PyObject *kind = nullptr, *value = nullptr, *trace = nullptr;
  PyErr_Fetch(&kind, &value, &trace);
  PyErr_NormalizeException(&kind, &value, &trace);
  Py_XDECREF(kind);
  Py_XDECREF(trace);
#endif
  PyObject* text = value ? PyObject_Str(value) : nullptr;
  const char* characters = text ? PyUnicode_AsUTF8(text) : nullptr;
  std::string result = characters ? characters : "unknown error";
  PyErr_Clear();
  Py_XDECREF(text);
  Py_XDECREF(value);
  return result;
}

}  // namespace detail

// A reference to a pynccl.nccl.Communicator. Copying it needs no GIL.
class CommunicatorRef {
 public:
  CommunicatorRef() = default;  // empty: all functions throw

  // Needs the GIL. Throws std::invalid_argument if the object is not a Communicator, or is closed
  // or not ready.
  explicit CommunicatorRef(PyObject* communicator) {
    PyObject* capsule = PyObject_CallMethod(communicator, "__pynccl_communicator__", nullptr);
    void* pointer = capsule ? PyCapsule_GetPointer(capsule, PYNCCL_CAPSULE_NAME) : nullptr;
    if (pointer) {
      target_ = static_cast<PyncclCommunicator*>(pointer);
      target_->retain(target_);
    }
    Py_XDECREF(capsule);
    if (!pointer) throw std::invalid_argument(detail::take_python_error());
  }

  CommunicatorRef(const CommunicatorRef& other) : target_(other.target_) {
    if (target_) target_->retain(target_);
  }
  CommunicatorRef(CommunicatorRef&& other) noexcept
      : target_(std::exchange(other.target_, nullptr)) {}
  CommunicatorRef& operator=(CommunicatorRef other) noexcept {
    std::swap(target_, other.target_);
    return *this;
  }
  ~CommunicatorRef() {
    if (target_) target_->release(target_);
  }

  // Throws std::invalid_argument if the communicator is closed.
  types::ncclComm_t handle() const {
    void* handle = target().handle(target_);
    if (!handle) throw std::invalid_argument("communicator: it is closed");
    return static_cast<types::ncclComm_t>(handle);
  }

  int rank() const { return target().rank; }
  int nranks() const { return target().nranks; }
  int device() const { return target().device; }
  int version() const { return target().version; }  // 23203 is 2.32.3
  bool on_device() const { return target().on_device != 0; }
  const char* library_path() const { return target().path; }

  // A function by name and type; PYNCCL_GET fills in both. Throws std::runtime_error if the library
  // lacks it.
  template <class Function>
  Function* get(const char* name) const {
    return found<Function>(target().function(target_, name), name);
  }
  template <class Function>
  Function* get_driver(const char* name) const {
    return found<Function>(target().driver_function(target_, name), name);
  }

  // Issues operations like the methods of Communicator, several of them as one group: its deadlines
  // and its flight record apply. seconds: a time limit that replaces the communicator's; 0 for
  // none. Throws NcclError with pynccl's text.
  void issue(const PyncclOperation* operations, std::size_t count, double seconds = 0) {
    require(offsetof(PyncclCommunicator, issue), "issue");
    std::string text;
    check_reported(target_->issue(target_, operations, count, seconds, &keep_text, &text), "issue",
                   text);
  }

  // Throws NcclError with pynccl's text if the communicator has failed, expired or was closed.
  void check_state() const {
    require(offsetof(PyncclCommunicator, state), "check_state");
    std::string text;
    check_reported(target_->state(target_, &keep_text, &text), "check_state", text);
  }

  // NCCL's estimate, in seconds, of the duration of operations as one group, without running them;
  // negative if it has none. All ranks must call it. Throws NcclError with pynccl's text.
  double simulate(const PyncclOperation* operations, std::size_t count) {
    require(offsetof(PyncclCommunicator, simulate), "simulate");
    std::string text;
    double duration = 0;
    check_reported(target_->simulate(target_, operations, count, &duration, &keep_text, &text),
                   "simulate", text);
    return duration;
  }

  // Whether memory lies completely in an open symmetric window, as required for the source of a
  // put.
  bool in_symmetric_window(const void* data, std::size_t nbytes) const {
    require(offsetof(PyncclCommunicator, in_symmetric_window), "in_symmetric_window");
    return target_->in_symmetric_window(target_, data, nbytes) != 0;
  }

  // For nccl.trace(): the sequence number of the last operation that was issued, and waits for an
  // operation, by the calling thread or by a device stream. begin_wait() returns null if nothing is
  // traced, else the argument of end_wait(); sequence is 0 if unknown.
  unsigned long long last_operation() const {
    require(offsetof(PyncclCommunicator, last_operation), "last_operation");
    return target_->last_operation(target_);
  }
  void* begin_wait(void* stream) const {
    require(offsetof(PyncclCommunicator, begin_wait), "begin_wait");
    return target_->begin_wait(target_, stream);
  }
  void end_wait(void* wait, unsigned long long sequence) const {
    require(offsetof(PyncclCommunicator, end_wait), "end_wait");
    target_->end_wait(target_, wait, sequence);
  }

  // Throws NcclError with the library's text, unless the result is ncclSuccess or ncclInProgress.
  void check(types::ncclResult_t result, const char* function) const {
    if (result == types::ncclSuccess || result == types::ncclInProgress) return;
    std::string text = std::string(function) + " on rank " + std::to_string(rank()) + ": " +
                       PYNCCL_GET(*this, ncclGetErrorString)(result);
    void* handle = target().handle(target_);
    const char* last = PYNCCL_GET(*this, ncclGetLastError)(static_cast<types::ncclComm_t>(handle));
    if (last && *last) text += std::string(": ") + last;
    throw NcclError(static_cast<int>(result), function, rank(), text);
  }

 private:
  const PyncclCommunicator& target() const {
    if (!target_) throw std::invalid_argument("communicator: the CommunicatorRef is empty");
    return *target_;
  }

  // Checks for fields after path, which were added later.
  void require(std::size_t offset, const char* name) const {
    if (target().size <= offset)
      throw std::runtime_error(std::string(name) +
                               ": this pynccl is older than the header and does not have it");
  }

  static void keep_text(void* context, const char* text) {
    *static_cast<std::string*>(context) = text;
  }

  void check_reported(int result, const char* function, const std::string& text) const {
    if (result != types::ncclSuccess) throw NcclError(result, function, rank(), text);
  }

  template <class Function>
  Function* found(void* address, const char* name) const {
    static_assert(std::is_function_v<Function>);
    if (!address)
      throw std::runtime_error(std::string(name) + ": " + library_path() + " does not have it");
    return reinterpret_cast<Function*>(address);
  }

  PyncclCommunicator* target_ = nullptr;
};

}  // namespace pynccl

#ifdef PYBIND11_VERSION_MAJOR  // pybind11 is included: its functions can take a CommunicatorRef
namespace pybind11::detail {
template <>
struct type_caster<pynccl::CommunicatorRef> {
  PYBIND11_TYPE_CASTER(pynccl::CommunicatorRef, const_name("pynccl.nccl.Communicator"));

  bool load(handle source, bool) {
    if (!source || !hasattr(source, "__pynccl_communicator__")) return false;
    value = pynccl::CommunicatorRef(source.ptr());
    return true;
  }
};
}  // namespace pybind11::detail

namespace pynccl {
// For the body of a module: translates NcclError into pynccl's exception for its result.
inline void translate_exceptions() {
  namespace py = pybind11;
  py::register_local_exception_translator([](std::exception_ptr raised) {
    try {
      if (raised) std::rethrow_exception(raised);
    } catch (const NcclError& error) {
      const py::object exception =
          py::module_::import("pynccl.errors")
              .attr("from_result")(error.what(), error.code, error.function, error.rank);
      PyErr_SetObject(py::type::of(exception).ptr(), exception.ptr());
    }
  });
}
}  // namespace pynccl
#endif

// Communicator.__pynccl_communicator__(): the capsule of extension/capsule.h. The C++ part of
// Communicator.borrow(), for pynccl/_internal/borrowing.py.
#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/overlap.h"
#include "comm/window.h"
#include "extension/capsule.h"
#include "python/call/bind.h"
#include "python/call/gil.h"
#include "python/call/held.h"
#include "python/comm/batch.h"
#include "python/convert/integer.h"
#include "watch/trace.h"

namespace pynccl::python {
namespace {

#define SAME(c, core) static_assert(PYNCCL_##c == static_cast<int>(OperationKind::k##core))
SAME(ALL_REDUCE, AllReduce);
SAME(BROADCAST, Broadcast);
SAME(REDUCE, Reduce);
SAME(ALL_GATHER, AllGather);
SAME(REDUCE_SCATTER, ReduceScatter);
SAME(ALL_TO_ALL, AllToAll);
SAME(GATHER, Gather);
SAME(SCATTER, Scatter);
SAME(SEND, Send);
SAME(RECV, Recv);
SAME(PUT_SIGNAL, PutSignal);
SAME(SIGNAL, Signal);
SAME(WAIT_SIGNAL, WaitSignal);
#undef SAME

// The struct that the capsule points to, with a reference to the Python communicator.
struct Exported final : PyncclCommunicator {
  using Report = void (*)(void* context, const char* text);

  Exported(const py::object& object, Communicator& c)
      : PyncclCommunicator{sizeof(PyncclCommunicator),
                           &Exported::take,
                           &Exported::release,
                           &Exported::find_handle,
                           &Exported::find_function,
                           &Exported::find_driver_function,
                           c.rank(),
                           c.nranks(),
                           c.device(),
                           c.library().version(),
                           c.library().memory() == Memory::kDevice,
                           c.library().path().c_str(),
                           &Exported::issue,
                           &Exported::simulate,
                           &Exported::state,
                           &Exported::in_symmetric_window,
                           &Exported::last_operation,
                           &Exported::begin_wait,
                           &Exported::end_wait},
        owner(object),
        communicator(c) {}

  static void take(PyncclCommunicator* self) { ++static_cast<Exported*>(self)->references; }

  static void release(PyncclCommunicator* self) {
    auto* exported = static_cast<Exported*>(self);
    if (--exported->references != 0) return;
    if (!Py_IsInitialized()) return;  // Python objects can no longer be released
    const GilAcquired gil;
    delete exported;
  }

  static void* find_handle(const PyncclCommunicator* self) {
    return static_cast<const Exported*>(self)->communicator.handle_or_null();
  }

  static void* find_function(const PyncclCommunicator* self, const char* name) {
    return static_cast<const Exported*>(self)->communicator.library().symbol(name);
  }

  static void* find_driver_function(const PyncclCommunicator* self, const char* name) {
    try {
      return static_cast<const Exported*>(self)->communicator.library().driver_symbol(name);
    } catch (const std::exception&) {  // there is no driver; C callers must not see exceptions
      return nullptr;
    }
  }

  static int issue(PyncclCommunicator* self, const PyncclOperation* operations, std::size_t count,
                   double seconds, Report report, void* context) {
    return reported(report, context, [&] {
      std::optional<DeadlineScope> deadline;
      if (seconds > 0) deadline.emplace(seconds, DeadlineScope::Kind::kReplaces);
      issue_all(static_cast<Exported*>(self)->communicator, operations, count);
    });
  }

  static int state(PyncclCommunicator* self, Report report, void* context) {
    return reported(report, context,
                    [&] { static_cast<Exported*>(self)->communicator.check_state(); });
  }

  static int simulate(PyncclCommunicator* self, const PyncclOperation* operations,
                      std::size_t count, double* duration, Report report, void* context) {
    return reported(report, context, [&] {
      Communicator& communicator = static_cast<Exported*>(self)->communicator;
      const CapsuleBatch all(communicator, operations, count);
      *duration = all.batch.simulate().value_or(-1);
    });
  }

  static int in_symmetric_window(const PyncclCommunicator* self, const void* data,
                                 std::size_t nbytes) {
    return static_cast<const Exported*>(self)->communicator.in_symmetric_window(data, nbytes);
  }

  static unsigned long long last_operation(const PyncclCommunicator* self) {
    return static_cast<const Exported*>(self)->communicator.deadlines().recorder().last();
  }

  static void* begin_wait(PyncclCommunicator* self, void* stream) {
    if (!Trace::timed()) return nullptr;
    const Communicator& communicator = static_cast<Exported*>(self)->communicator;
    constexpr auto kWork = TraceWait::What::kWork;
    try {
      if (!self->on_device) return new TraceWait(kWork);
      return new TraceWait(kWork, communicator.shared_library(), self->device,
                           static_cast<CUstream>(stream));
    } catch (const std::exception&) {  // wait without tracing
      return nullptr;
    }
  }

  static void end_wait(PyncclCommunicator* self, void* wait, unsigned long long sequence) {
    const std::unique_ptr<TraceWait> traced(static_cast<TraceWait*>(wait));
    if (traced && sequence != 0) traced->of(static_cast<Exported*>(self)->communicator, sequence);
  }

  template <class Body>
  static int reported(Report report, void* context, Body&& body) {
    try {
      body();
      return ncclSuccess;
    } catch (const NcclFailure& failure) {
      report(context, failure.what());
      return failure.code;
    } catch (const std::exception& error) {  // the communicator is closed, or NCCL is too old
      report(context, error.what());
      return ncclInvalidArgument;
    }
  }

  static void issue_all(Communicator& communicator, const PyncclOperation* operations,
                        std::size_t count) {
    if (count == 1) {
      ncclWaitSignalDesc_t signals;
      const Operation operation = operation_of(communicator, *operations, signals);
      check_overlap(communicator, operation);
      return communicator.issue(operation);
    }
    CapsuleBatch(communicator, operations, count).batch.issue();
  }

  // A batch of operations, with the descriptors of those that wait for signals.
  struct CapsuleBatch {
    CapsuleBatch(Communicator& communicator, const PyncclOperation* operations, std::size_t count)
        : signals(count) {
      for (std::size_t i = 0; i < count; ++i)
        batch.add(communicator, operation_of(communicator, operations[i], signals[i]), {});
      batch.check_overlap();
    }

    std::vector<ncclWaitSignalDesc_t> signals;
    Batch batch;
  };

  static Operation operation_of(Communicator& communicator, const PyncclOperation& o,
                                ncclWaitSignalDesc_t& signals) {
    Operation operation{.kind = static_cast<OperationKind>(o.kind),
                        .dtype = static_cast<ncclDataType_t>(o.dtype),
                        .op = static_cast<ncclRedOp_t>(o.op),
                        .root_or_peer = o.root_or_peer,
                        .sendbuff = o.sendbuff,
                        .recvbuff = o.recvbuff,
                        .count = o.count,
                        .stream = static_cast<cudaStream_t>(o.stream)};
    if (o.kind >= PYNCCL_SEND) {
      if (o.root_or_peer < 0 || o.root_or_peer >= communicator.nranks()) [[unlikely]]
        throw_rank("root_or_peer", o.root_or_peer, communicator.nranks());
      if (o.kind > PYNCCL_RECV) [[unlikely]]
        make_one_sided(communicator, operation, signals);
    }
    return operation;
  }

  static void make_one_sided(Communicator& communicator, Operation& o,
                             ncclWaitSignalDesc_t& signals) {
    switch (o.kind) {
      case OperationKind::kPutSignal: {
        const auto* target = static_cast<const PyncclTarget*>(std::exchange(o.recvbuff, nullptr));
        const Window& window = communicator.window_at(target->window);
        o.window = &window;
        o.offset = target->offset;
        return window.check_put(o);
      }
      case OperationKind::kSignal:
        return;
      case OperationKind::kWaitSignal:
        signals = {static_cast<int>(o.count), o.root_or_peer, 0, 0};
        o.sendbuff = &signals;
        o.count = 1;
        return;
      default:
        throw std::invalid_argument("kind: " + std::to_string(static_cast<int>(o.kind)) +
                                    " is not an operation of this version of pynccl");
    }
  }

  std::atomic<int> references = 1;
  py::object owner;
  Communicator& communicator;
};

py::capsule capsule_of_communicator(const py::object& self) {
  auto& communicator = py::cast<Communicator&>(self);
  communicator.handle();  // throws unless the communicator is open
  auto exported = std::make_unique<Exported>(self, communicator);
  py::capsule capsule(
      static_cast<PyncclCommunicator*>(exported.get()), PYNCCL_CAPSULE_NAME, [](PyObject* object) {
        auto* pointer =
            static_cast<PyncclCommunicator*>(PyCapsule_GetPointer(object, PYNCCL_CAPSULE_NAME));
        pointer->release(pointer);
      });
  static_cast<void>(exported.release());  // the capsule releases it
  return capsule;
}

// Wraps a Python function that returns the handle as an integer. The result is null if it raises.
std::function<ncclComm_t()> handle_getter(const py::object& function) {
  if (function.is_none()) return {};
  return [function = hold(function)]() -> ncclComm_t {
    const GilAcquired gil;
    const py::error_scope raised;  // an exception may be set
    try {
      const py::object answer = py::handle(static_cast<PyObject*>(function.get()))();
      return reinterpret_cast<ncclComm_t>(py::cast<std::uintptr_t>(answer));
    } catch (const std::exception&) {
      return nullptr;
    }
  };
}

std::shared_ptr<Communicator> borrow_handle(const std::shared_ptr<Library>& library,
                                            std::uintptr_t handle, const py::object& owner,
                                            const py::object& ask) {
  Communicator::Owner from{nullptr, handle_getter(ask), hold(owner)};
  if (py::isinstance<Communicator>(owner))
    from.communicator = py::cast<std::shared_ptr<Communicator>>(owner);
  auto* const comm = reinterpret_cast<ncclComm_t>(handle);
  const GilReleased released;
  if (!from.communicator) from.communicator = Communicator::find(*library, comm);
  if (!from.communicator && from.ask && from.ask() != comm)
    throw std::invalid_argument("borrow: the communicator is closed");
  auto borrowed = std::make_shared<Communicator>(library, Communicator::Options{});
  borrowed->borrow(comm, std::move(from));
  return borrowed;
}

}  // namespace

void bind_extension(py::module_& m) {
  add_method<Communicator>("__pynccl_communicator__", &capsule_of_communicator,
                           R"(The communicator for C++, as a capsule that pynccl.h reads.

The capsule keeps this object alive but does not keep it open: if the communicator is closed, calls
from C++ throw an exception. See pynccl.get_include().

Returns:
    A capsule named "pynccl.communicator.v1".

Raises:
    ValueError: the communicator is closed or not ready.)");
  m.def("borrow_handle", &borrow_handle, py::arg("library"), py::arg("handle"), py::arg("owner"),
        py::arg("ask"),
        "Borrow an ncclComm_t. owner: an object to keep alive; if it is a Communicator, it owns "
        "the handle. ask: a function that returns the handle until its owner closes it, or None.");
}

}  // namespace pynccl::python

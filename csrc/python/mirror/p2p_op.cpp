// P2POp, and the fast function batch_isend_irecv, which issues a list of P2POps as one NCCL group.
#include <array>
#include <vector>

#include "comm/communicator.h"
#include "comm/overlap.h"
#include "python/call/bind.h"
#include "python/call/fastcall.h"
#include "python/collectives/operation_factory.h"
#include "python/mirror/fast_function.h"
#include "python/mirror/native.h"
#include "python/mirror/process_group.h"

namespace pynccl::python::mirror {
namespace {

using Kind = OperationKind;

PyTypeObject* p2p_op_type;
PyObject* complete;  // the Python function that checks and completes the arguments
const Parameters* parameters_of_p2p_op;

struct P2POp {
  static constexpr std::size_t kFields = 6;  // in the order of the constructor's parameters
  enum Field : std::uint8_t { kOp, kTensor, kPeer, kGroup, kTag, kGroupPeer };
  static constexpr Parameters::Expected kParameters = {{{"op", kOp},
                                                        {"tensor", kTensor},
                                                        {"peer", kPeer},
                                                        {"group", kGroup},
                                                        {"tag", kTag},
                                                        {"group_peer", kGroupPeer}}};

  std::array<py::object, kFields> fields;

  template <class F>
  void each(F&& f) {
    for (py::object& field : fields) f(field);
  }
};

using NativeP2POp = Native<P2POp, 128>;

P2POp& p2p_op(PyObject* self) { return NativeP2POp::of(self); }

py::object reference_to(PyObject* object) { return py::reinterpret_borrow<py::object>(object); }

Direction direction_of(PyObject* op) {
  const FastFunction* function = op ? FastFunction::in(op) : nullptr;
  return function ? function->spec().direction : Direction::kNone;
}

// Sets the fields. Returns false if only the Python function can handle the arguments.
bool fill(P2POp& op, const Parameters::Values& values) {
  static PyObject* const no_tag = PyLong_FromLong(0);
  const ProcessGroup* group = ProcessGroup::given(values[P2POp::kGroup]);
  if (!group || !group->connected() || !is_tensor(values[P2POp::kTensor]) ||
      direction_of(values[P2POp::kOp]) == Direction::kNone)
    return false;
  PyObject* peer = values[P2POp::kPeer];
  PyObject* group_peer = group->rank_of(peer, values[P2POp::kGroupPeer]);
  if (!group_peer) return false;
  if (!given(peer)) {
    if (!group->is_default()) return false;
    peer = group_peer;
  }
  PyObject* given_group = values[P2POp::kGroup];
  // The fields are empty, so there is nothing to release.
  const auto set = [&](P2POp::Field field, PyObject* value) {
    new (&op.fields[field]) py::object(reference_to(value));
  };
  set(P2POp::kOp, values[P2POp::kOp]);
  set(P2POp::kTensor, values[P2POp::kTensor]);
  set(P2POp::kPeer, peer);
  set(P2POp::kGroup, given(given_group) ? given_group : ProcessGroup::default_object());
  set(P2POp::kTag, values[P2POp::kTag] ? values[P2POp::kTag] : no_tag);
  set(P2POp::kGroupPeer, group_peer);
  return true;
}

// Sets the fields from the result of the Python function; null if it raised an exception.
void fill_from(P2POp& op, PyObject* completed) {
  if (!completed) throw py::error_already_set();
  const auto values = py::reinterpret_steal<py::tuple>(completed);
  for (std::size_t i = 0; i < P2POp::kFields; ++i) op.fields[i] = values[i];
}

// Called for P2POp(...).
PyObject* construct(PyObject* type, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  return guarded([&] {
    auto self =
        py::reinterpret_steal<py::object>(NativeP2POp::make(reinterpret_cast<PyTypeObject*>(type)));
    Parameters::Values values;
    const auto nargs = static_cast<std::size_t>(PyVectorcall_NARGS(nargsf));
    if (!parameters_of_p2p_op->match(args, nargs, kwnames, values) ||
        !fill(p2p_op(self.ptr()), values))
      fill_from(p2p_op(self.ptr()), PyObject_Vectorcall(complete, args, nargsf, kwnames));
    return self.release().ptr();
  });
}

// The __new__ of subclasses.
PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  return guarded([&] {
    auto self = py::reinterpret_steal<py::object>(NativeP2POp::make(type));
    fill_from(p2p_op(self.ptr()), PyObject_Call(complete, args, kwargs));
    return self.release().ptr();
  });
}

int initialize(PyObject* self, PyObject* args, PyObject* kwargs) {
  PyObject* done = guarded([&] {
    fill_from(p2p_op(self), PyObject_Call(complete, args, kwargs));
    return Py_NewRef(Py_None);
  });
  Py_XDECREF(done);
  return done ? 0 : -1;
}

py::object& field_of(PyObject* self, void* closure) {
  return p2p_op(self).fields[reinterpret_cast<std::uintptr_t>(closure)];
}

PyObject* get_field(PyObject* self, void* closure) {
  const py::object& field = field_of(self, closure);
  return Py_NewRef(field ? field.ptr() : Py_None);
}

int set_field(PyObject* self, PyObject* value, void* closure) {
  if (!value) {
    PyErr_SetString(PyExc_AttributeError, "an attribute of a P2POp cannot be deleted");
    return -1;
  }
  const py::object before = std::exchange(field_of(self, closure), reference_to(value));
  return 0;
}

PyObject* repr_p2p_op(PyObject* self) {
  return guarded([&] {
    const auto& f = p2p_op(self).fields;
    py::object from = f[P2POp::kGroup].attr("rank")(), to = f[P2POp::kGroupPeer];
    if (direction_of(f[P2POp::kOp].ptr()) != Direction::kSend) std::swap(from, to);
    const py::object& tensor = f[P2POp::kTensor];
    return py::str("P2POp({} pg={}, group_src={}, group_dst={},  {}, {})")
        .format(f[P2POp::kOp].attr("__name__"), f[P2POp::kGroup].attr("group_name"), from, to,
                tensor.attr("shape"), tensor.attr("dtype"))
        .release()
        .ptr();
  });
}

// The kind of a batch, according to the kinds of its operations.
py::object kind_of(bool sends, bool receives) {
  static PyObject* const kinds[] = {PyUnicode_InternFromString("coalesced isend"),
                                    PyUnicode_InternFromString("coalesced irecv"),
                                    PyUnicode_InternFromString("coalesced irecv, isend")};
  return reference_to(kinds[receives + (sends && receives)]);
}

// The checked operations of a batch, and their CommStream.
struct Exchange {
  const CommStreamRef* ref = nullptr;
  TensorView view;  // the first tensor
  std::vector<Operation> operations;
  std::size_t receives = 0;

  Exchange() : operations(std::move(spare)) {}
  ~Exchange() {
    operations.clear();
    spare = std::move(operations);
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  // The memory of the thread's previous batch, for reuse.
  static thread_local std::vector<Operation> spare;
};
thread_local std::vector<Operation> Exchange::spare;

// Checks the operations of a list. Returns false if only the Python function can handle one of
// them, and throws like the methods of Communicator.
bool check_operations(Exchange& exchange, const ProcessGroup& group, PyObject* group_object,
                      PyObject* list) {
  const auto size = static_cast<std::size_t>(PyList_GET_SIZE(list));
  exchange.operations.reserve(size);
  Communicator* communicator = nullptr;
  cudaStream_t queue = nullptr;
  Owners owners;  // stays empty: tensors own their memory
  OperationArguments arguments;
  arguments.owners = &owners;
  for (std::size_t i = 0; i < size; ++i) {
    PyObject* item = PyList_GET_ITEM(list, static_cast<Py_ssize_t>(i));
    if (Py_TYPE(item) != p2p_op_type) return false;
    const auto& fields = p2p_op(item).fields;
    const Direction direction = direction_of(fields[P2POp::kOp].ptr());
    PyObject* tensor = fields[P2POp::kTensor].ptr();
    if (direction == Direction::kNone || !is_tensor(tensor) ||
        fields[P2POp::kGroup].ptr() != group_object)
      return false;
    TensorView view;
    view_tensor(view, owners, "tensor", tensor, nullptr, nullptr);
    if (!communicator) {
      exchange.ref = group.comm_stream(view.device_type);
      if (!exchange.ref) return false;
      exchange.view = view;
      CommStream& comm_stream = *exchange.ref->comm_stream;
      communicator = &comm_stream.communicator();
      queue = reinterpret_cast<cudaStream_t>(comm_stream.queue().handle());
    }
    arguments.root_or_peer = fields[P2POp::kGroupPeer].ptr();
    const bool receives = direction == Direction::kReceive;
    exchange.receives += receives;
    Operation& operation = exchange.operations.emplace_back();
    receives ? make_operation<Kind::kRecv>(*communicator, arguments, view, &queue, operation)
             : make_operation<Kind::kSend>(*communicator, arguments, view, &queue, operation);
  }
  OverlapCheck check(size);
  for (const Operation& operation : exchange.operations) check.add(*communicator, operation);
  check.run();
  return true;
}

// The tensors of a batch in two lists: those to send and those to receive into.
std::pair<py::list, py::list> tensors_of(PyObject* list, const Exchange& exchange) {
  const std::size_t size = exchange.operations.size();
  py::list sent(size - exchange.receives), received(exchange.receives);
  Py_ssize_t sends = 0, receives = 0;
  for (std::size_t i = 0; i < size; ++i) {
    const bool receive = exchange.operations[i].kind == Kind::kRecv;
    PyObject* item = PyList_GET_ITEM(list, static_cast<Py_ssize_t>(i));
    PyObject* tensor = p2p_op(item).fields[P2POp::kTensor].ptr();
    PyList_SET_ITEM((receive ? received : sent).ptr(), receive ? receives++ : sends++,
                    Py_NewRef(tensor));
  }
  return {std::move(sent), std::move(received)};
}

void issue_together(Communicator& communicator, const std::vector<Operation>& operations) {
  const Communicator::Use use(communicator);  // throws if it is closed, before anything is sent
  const Deadlines::Group deadline(communicator.deadlines());
  try {
    GroupScope group(communicator.library());
    for (const Operation& operation : operations) communicator.issue_in_group(operation);
    group.end();
  } catch (const NcclFailure& failure) {
    Communicator::rethrow_failed(failure, std::array{&communicator});
  }
}

PyObject* batch_isend_irecv(const FastFunction&, PyObject* const* values) {
  PyObject* list = values[kOpList];
  if (!list || !PyList_CheckExact(list) || PyList_GET_SIZE(list) == 0) return fallback();
  PyObject* first = PyList_GET_ITEM(list, 0);
  if (Py_TYPE(first) != p2p_op_type) return fallback();
  PyObject* group_object = p2p_op(first).fields[P2POp::kGroup].ptr();
  const ProcessGroup* group = given(group_object) ? direct_group(group_object) : nullptr;
  if (!group) return fallback();
  Exchange exchange;
  if (!passes([&] { return check_operations(exchange, *group, group_object, list); })) [[unlikely]]
    return fallback();

  auto [sent, received] = tensors_of(list, exchange);
  const auto& [ref, view, operations, receives] = exchange;
  // The work keeps the communicator alive. ref belongs to the group, which another thread may
  // destroy meanwhile.
  Communicator& communicator = ref->comm_stream->communicator();
  const py::object kind = kind_of(operations.size() > receives, receives > 0);
  Work work(ref->object, communicator, kind, view);
  work.result = std::move(received);
  py::object held = py::make_tuple(std::move(sent), work.result);
  PyObject* started = issue_async(*ref->comm_stream, std::move(work), std::move(held),
                                  [&] { issue_together(communicator, exchange.operations); });
  if (!started) [[unlikely]]
    return nullptr;
  PyObject* works = PyList_New(1);
  if (!works) {
    Py_DECREF(started);
    return nullptr;
  }
  PyList_SET_ITEM(works, 0, started);
  return works;
}

constexpr FastSpec kP2PSpecs[] = {
    {"batch_isend_irecv", {{{"p2p_op_list", kOpList}}}, &batch_isend_irecv}};

constexpr char kDoc[] = "See torch.distributed.P2POp. tag is ignored, as by torch's NCCL backend.";

}  // namespace

std::span<const FastSpec> p2p_specs() { return kP2PSpecs; }

void bind_p2p_op(py::module_& m) {
  static PyGetSetDef properties[P2POp::kFields + 1] = {};
  for (std::size_t i = 0; i < P2POp::kFields; ++i)
    properties[i] = {P2POp::kParameters[i].name, &get_field, &set_field, nullptr,
                     reinterpret_cast<void*>(i)};
  static PyType_Slot slots[] = {{Py_tp_new, slot(&create)},
                                {Py_tp_init, slot(&initialize)},
                                {Py_tp_dealloc, slot(&NativeP2POp::destroy)},
                                {Py_tp_traverse, slot(&NativeP2POp::traverse)},
                                {Py_tp_clear, slot(&NativeP2POp::clear)},
                                {Py_tp_repr, slot(&repr_p2p_op)},
                                {Py_tp_getset, properties},
                                {Py_tp_doc, const_cast<char*>(kDoc)},
                                {0, nullptr}};
  static PyType_Spec spec = {"pynccl.mirror.api.p2p.P2POp", sizeof(NativeP2POp), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
  p2p_op_type = add_type(m, spec, "P2POp");
  p2p_op_type->tp_vectorcall = &construct;
  NativeP2POp::spares.type = p2p_op_type;
  m.def(
      "complete_p2p_ops",
      [](const py::function& function) {
        parameters_of_p2p_op = new Parameters(function, P2POp::kParameters);  // never destroyed
        Py_XDECREF(std::exchange(complete, Py_NewRef(function.ptr())));
        return function;
      },
      py::arg("function"),
      R"(Set the function that checks and completes the arguments of P2POp.

Args:
    function: takes the arguments of P2POp and returns the values of its attributes op, tensor,
        peer, group, tag, group_peer.

Raises:
    TypeError: its parameters are not those of P2POp.)");
}

}  // namespace pynccl::python::mirror

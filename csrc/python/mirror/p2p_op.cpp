// P2POp, and batch_isend_irecv: a list of them as one NCCL group.
#include "python/batch.h"
#include "python/collectives.h"
#include "python/mirror/bind.h"
#include "python/mirror/function.h"
#include "python/mirror/issue.h"
#include "python/mirror/native.h"

namespace pynccl::python::mirror {
namespace {

using Kind = OperationKind;

PyTypeObject* p2p_op_type;
PyObject* complete;  // Python's function for arguments that are not simple

struct P2POp {
  static constexpr std::size_t kFields = 6;  // in the order of the constructor's parameters
  static constexpr Parameters::Names kNames = {"op",    "tensor", "peer",
                                               "group", "tag",    "group_peer"};
  enum Field { kOp, kTensor, kPeer, kGroup, kTag, kGroupPeer };

  std::array<py::object, kFields> fields;

  template <class F>
  void each(F&& f) {
    for (py::object& field : fields) f(field);
  }
};

using NativeP2POp = Native<P2POp, 128>;

P2POp& p2p_op(PyObject* self) { return NativeP2POp::of(self); }

py::object borrow(PyObject* object) { return py::reinterpret_borrow<py::object>(object); }

bool is_given(PyObject* argument) { return argument && argument != Py_None; }

Direction direction_of(PyObject* op) {
  const Function* function = op ? Function::in(op) : nullptr;
  return function ? function->form().direction : Direction::kNone;
}

// Fills in the operation where its arguments are simple.
bool fill(P2POp& made, const Parameters::Values& values) {
  static PyObject* const no_tag = PyLong_FromLong(0);
  const ProcessGroup* group = ProcessGroup::given(values[P2POp::kGroup]);
  if (!group || !group->connected() || !is_tensor(values[P2POp::kTensor]) ||
      direction_of(values[P2POp::kOp]) == Direction::kNone)
    return false;
  PyObject* peer = values[P2POp::kPeer];
  PyObject* group_peer = group->rank_of(peer, values[P2POp::kGroupPeer]);
  if (!group_peer) return false;
  if (!is_given(peer)) {
    if (!group->is_default()) return false;
    peer = group_peer;
  }
  PyObject* given_group = values[P2POp::kGroup];
  const std::array<PyObject*, P2POp::kFields> filled = {
      values[P2POp::kOp],
      values[P2POp::kTensor],
      peer,
      is_given(given_group) ? given_group : ProcessGroup::default_object(),
      values[P2POp::kTag] ? values[P2POp::kTag] : no_tag,
      group_peer};
  for (std::size_t i = 0; i < P2POp::kFields; ++i) made.fields[i] = borrow(filled[i]);
  return true;
}

// The same by Python's function, which refuses what is wrong.
void fill_from(P2POp& made, PyObject* completed) {
  if (!completed) throw py::error_already_set();
  const auto values = py::reinterpret_steal<py::tuple>(completed);
  for (std::size_t i = 0; i < P2POp::kFields; ++i) made.fields[i] = values[i];
}

// What a call of the class itself does.
PyObject* construct(PyObject* type, PyObject* const* args, std::size_t nargsf, PyObject* kwnames) {
  return guarded([&] {
    static const Parameters parameters(P2POp::kNames);
    auto made =
        py::reinterpret_steal<py::object>(NativeP2POp::make(reinterpret_cast<PyTypeObject*>(type)));
    Parameters::Values values;
    const auto nargs = static_cast<std::size_t>(PyVectorcall_NARGS(nargsf));
    if (!parameters.match(args, nargs, kwnames, values) || !fill(p2p_op(made.ptr()), values))
      fill_from(p2p_op(made.ptr()), PyObject_Vectorcall(complete, args, nargsf, kwnames));
    return made.release().ptr();
  });
}

// What a class that inherits it does.
PyObject* create(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
  return guarded([&] {
    auto made = py::reinterpret_steal<py::object>(NativeP2POp::make(type));
    fill_from(p2p_op(made.ptr()), PyObject_Call(complete, args, kwargs));
    return made.release().ptr();
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
  const py::object before = std::exchange(field_of(self, closure), borrow(value));
  return 0;
}

PyObject* repr(PyObject* self) {
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

// The name of a batch, by what is in it.
py::object name_of(bool sends, bool receives) {
  static PyObject* const names_of_batches[] = {
      PyUnicode_InternFromString("coalesced isend"), PyUnicode_InternFromString("coalesced irecv"),
      PyUnicode_InternFromString("coalesced irecv, isend")};
  return borrow(names_of_batches[receives + (sends && receives)]);
}

// Lists of the tensors of a batch, filled in its order.
struct Tensors {
  explicit Tensors(std::size_t size) : list(size) {}
  void add(PyObject* tensor) { PyList_SET_ITEM(list.ptr(), count++, Py_NewRef(tensor)); }

  py::list list;
  Py_ssize_t count = 0;
};

// How many receive, or nothing where the list is not one of operations that can be taken as it is.
std::optional<std::size_t> count_receives(PyObject* list) {
  if (!list || !PyList_CheckExact(list) || PyList_GET_SIZE(list) == 0) return std::nullopt;
  std::size_t receives = 0;
  for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); ++i) {
    PyObject* item = PyList_GET_ITEM(list, i);
    if (Py_TYPE(item) != p2p_op_type) return std::nullopt;
    const auto& fields = p2p_op(item).fields;
    const Direction direction = direction_of(fields[P2POp::kOp].ptr());
    if (direction == Direction::kNone || !is_tensor(fields[P2POp::kTensor].ptr()))
      return std::nullopt;
    receives += direction == Direction::kReceive;
  }
  return receives;
}

// Its tensors were checked by count_receives().
PyObject* batch_isend_irecv(const Function&, PyObject* const* values) {
  PyObject* operations = values[0];
  const auto receives = count_receives(operations);
  if (!receives) return declined();
  PyObject* group_object = p2p_op(PyList_GET_ITEM(operations, 0)).fields[P2POp::kGroup].ptr();
  const ProcessGroup* group = group_object != Py_None ? direct_group(group_object) : nullptr;
  if (!group) return declined();

  const auto size = static_cast<std::size_t>(PyList_GET_SIZE(operations));
  Tensors sent(size - *receives), received(*receives);
  const ProcessGroup::Link* link = nullptr;
  TensorView place;
  Batch batch;
  const bool checked_well = passes([&] {
    batch.reserve(size);
    cudaStream_t queue = nullptr;
    for (std::size_t i = 0; i < size; ++i) {
      const auto& fields = p2p_op(PyList_GET_ITEM(operations, static_cast<Py_ssize_t>(i))).fields;
      if (fields[P2POp::kGroup].ptr() != group_object) return false;
      Arguments arguments;
      arguments.tensor = fields[P2POp::kTensor].ptr();
      arguments.peer = fields[P2POp::kGroupPeer].ptr();
      TensorView view;
      view_tensor(view, "tensor", arguments.tensor, nullptr, nullptr);
      if (i == 0) {
        link = group->channel(view.device_type);
        if (!link) return false;
        queue = reinterpret_cast<cudaStream_t>(link->channel->queue().handle());
        place = view;
      }
      Communicator& communicator = link->channel->communicator();
      if (direction_of(fields[P2POp::kOp].ptr()) == Direction::kSend) {
        batch.add(communicator, checked<Kind::kSend>(communicator, arguments, view, &queue), {});
        sent.add(arguments.tensor);
      } else {
        batch.add(communicator, checked<Kind::kRecv>(communicator, arguments, view, &queue), {});
        received.add(arguments.tensor);
      }
    }
    return true;
  });
  if (!checked_well) [[unlikely]]
    return declined();

  Work work(link->object, *link->channel, name_of(size > *receives, *receives > 0), place);
  work.result = std::move(received.list);
  py::object held = py::make_tuple(std::move(sent.list), work.result);
  PyObject* started = issue_async(std::move(work), std::move(held), [&] { batch.issue(); });
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

constexpr Form kForms[] = {{"batch_isend_irecv", {"p2p_op_list"}, &batch_isend_irecv}};

constexpr char kDoc[] = R"(One of the operations of :func:`batch_isend_irecv`.

Args:
    op: :func:`isend` or :func:`irecv`.
    tensor: what to send, or where to receive.
    peer: the other side's global rank.
    group: the group; None is the default one.
    tag: ignored, as by torch's NCCL backend.
    group_peer: the other side's rank in the group, instead of peer.)";

}  // namespace

std::span<const Form> p2p_forms() { return kForms; }

void bind_p2p_op(py::module_& m) {
  static PyGetSetDef properties[P2POp::kFields + 1] = {};
  for (std::size_t i = 0; i < P2POp::kFields; ++i)
    properties[i] = {P2POp::kNames[i], &get_field, &set_field, nullptr, reinterpret_cast<void*>(i)};
  static PyType_Slot slots[] = {{Py_tp_new, slot(&create)},
                                {Py_tp_init, slot(&initialize)},
                                {Py_tp_dealloc, slot(&NativeP2POp::destroy)},
                                {Py_tp_traverse, slot(&NativeP2POp::traverse)},
                                {Py_tp_clear, slot(&NativeP2POp::clear)},
                                {Py_tp_repr, slot(&repr)},
                                {Py_tp_getset, properties},
                                {Py_tp_doc, const_cast<char*>(kDoc)},
                                {0, nullptr}};
  static PyType_Spec spec = {"pynccl.mirror.p2p.P2POp", sizeof(NativeP2POp), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, slots};
  p2p_op_type = add_type(m, spec, "P2POp");
  p2p_op_type->tp_vectorcall = &construct;
  NativeP2POp::spares.type = p2p_op_type;
  m.def(
      "complete_p2p_ops",
      [](const py::function& function) {
        Py_XDECREF(std::exchange(complete, Py_NewRef(function.ptr())));
        return function;
      },
      py::arg("function"),
      R"(Tell P2POp what to do with arguments that are not simple.

Args:
    function: takes the arguments of P2POp and gives its attributes, in their order.)");
}

}  // namespace pynccl::python::mirror

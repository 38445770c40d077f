#include "python/convert/red_op.h"

#include <array>
#include <iterator>

#include "python/call/bind.h"
#include "python/call/fastcall.h"
#include "python/call/held.h"
#include "python/call/modules.h"
#include "python/convert/tensor.h"

namespace pynccl::python {
namespace {

struct NamedOp {
  const char* name;   // as a str
  const char* torch;  // as an attribute of torch's ReduceOp
  const char* upper;  // as an attribute of RedOp, and in messages
  ncclRedOp_t op;
};

constexpr NamedOp kNamedOps[] = {
    {"sum", "SUM", "SUM", ncclSum},        {"avg", "AVG", "AVG", ncclAvg},
    {"max", "MAX", "MAX", ncclMax},        {"min", "MIN", "MIN", ncclMin},
    {"prod", "PRODUCT", "PROD", ncclProd}, {"product", "PRODUCT", "PROD", ncclProd},
};

[[noreturn, gnu::cold]] void throw_unknown(PyObject* op) {
  throw_value_error("op", std::string(py::repr(op)),
                    " is not one of 'sum', 'avg', 'max', 'min', 'prod'");
}

// String literals are interned, so comparing addresses usually suffices.
const NamedOp& named_by(PyObject* text) {
  static std::array<PyObject*, std::size(kNamedOps)> interned{};  // filled in under the GIL
  for (std::size_t i = 0; i < interned.size(); ++i) {
    if (!interned[i] && !(interned[i] = PyUnicode_InternFromString(kNamedOps[i].name)))
      throw py::error_already_set();
    if (interned[i] == text) return kNamedOps[i];
  }
  for (const NamedOp& named : kNamedOps)
    if (PyUnicode_CompareWithASCIIString(text, named.name) == 0) return named;
  throw_unknown(text);
}

// The operator for a value of torch's ReduceOp; nullptr for other objects.
const NamedOp* named_by_torch(PyObject* op) {
  static ModuleClass reduce_op("torch.distributed.distributed_c10d", "ReduceOp");
  static std::array<PyObject*, std::size(kNamedOps)> values{};  // filled in under the GIL
  PyTypeObject* type = reduce_op.get();
  if (!type) return nullptr;
  const py::handle of_torch(reinterpret_cast<PyObject*>(type));
  // A ReduceOp wraps a value that compares equal to a member of the enumeration.
  py::object value = py::reinterpret_borrow<py::object>(op);
  const bool wrapped = Py_TYPE(op) == type;
  if (wrapped) value = py::tuple(value.attr("__getstate__")())[0];
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i]) values[i] = py::object(of_torch.attr(kNamedOps[i].torch)).release().ptr();
    if (values[i] == value.ptr() || (wrapped && value.equal(py::handle(values[i]))))
      return &kNamedOps[i];
  }
  if (!py::isinstance(value, of_torch.attr("RedOpType"))) return nullptr;
  if (value.equal(of_torch.attr("PREMUL_SUM")))
    throw_value_error(
        "op", "ReduceOp.PREMUL_SUM is not supported; create one with Communicator.pre_mul_sum()");
  throw_value_error("op", std::string(py::repr(value)), " is not an operator of NCCL");
}

const NamedOp& named_op(PyObject* op) {
  if (PyUnicode_Check(op)) return named_by(op);
  if (const NamedOp* found = named_by_torch(op)) return *found;
  throw_type_error("op", "a RedOp, an operator of torch.distributed.ReduceOp or a str", op);
}

}  // namespace

RedOp::RedOp(ncclRedOp_t value, std::string name, std::shared_ptr<Communicator> communicator,
             const DType& dtype, std::shared_ptr<void> scalar)
    : value_(value),
      name_(std::move(name)),
      communicator_(std::move(communicator)),
      dtype_(&dtype),
      scalar_(std::move(scalar)) {}

RedOp::~RedOp() {
  try {
    close();
  } catch (...) {  // NCCL frees the operators of a failed communicator
  }
}

void RedOp::close() {
  if (!communicator_ || closed_) return;
  closed_ = true;
  if (communicator_->closed()) return;
  const Communicator::Use comm(*communicator_);
  COMM_CHECK(comm, ncclRedOpDestroy, (value_, comm));
}

void RedOp::throw_unless_valid(const DType& dtype, const Communicator& communicator) const {
  if (communicator_) {
    if (closed_) throw_value_error("op", name_, " is closed");
    if (communicator_.get() != &communicator)
      throw_value_error("op", name_, " belongs to another communicator");
    if (dtype_->nccl != dtype.nccl)
      throw_value_error("op", name_, " is for ", dtype_->name, ", the tensor is ", dtype.name);
  }
  if (!dtype.reduces(value_)) throw_value_error("op", name_, " is not defined on ", dtype.name);
}

ncclRedOp_t given_op(PyObject* op, const DType& dtype, const Communicator& communicator) {
  if (!op) throw_value_error("op", "SUM is not defined on ", dtype.name);
  static PyTypeObject* type = nullptr;  // set under the GIL
  if (!type) type = reinterpret_cast<PyTypeObject*>(py::type::of<RedOp>().release().ptr());
  if (Py_TYPE(op) != type) {
    const NamedOp& named = named_op(op);
    if (!dtype.reduces(named.op))
      throw_value_error("op", named.upper, " is not defined on ", dtype.name);
    return named.op;
  }
  const auto& red_op = unwrap<RedOp>(op);
  red_op.check(dtype, communicator);
  return red_op.value();
}

std::shared_ptr<RedOp> pre_mul_sum(const std::shared_ptr<Communicator>& communicator,
                                   const py::object& scalar, const py::object& dtype) {
  const Library& library = communicator->library();
  communicator->handle();  // a closed communicator is refused before its arguments are read
  const DType& type = dtype_from_python("dtype", dtype.ptr());
  ncclRedOp_t op = ncclSum;
  // NumPy scalars are instances of numbers.Real; arrays and tensors are not.
  if (py::isinstance(scalar, py::module_::import("numbers").attr("Real"))) {
    std::uint64_t bits = encode_scalar("scalar", scalar.ptr(), type);
    const Communicator::Use comm(*communicator);
    COMM_CHECK(comm, ncclRedOpCreatePreMulSum,
               (&op, &bits, type.nccl, ncclScalarHostImmediate, comm));
    return std::make_shared<RedOp>(op, "PRE_MUL_SUM", communicator, type);
  }
  Owners owners;
  TensorView view = view_tensor(owners, "scalar", scalar.ptr());
  check_placement(view, library, communicator->device());
  if (view.count != 1 || view.dtype != &type)
    throw_value_error("scalar", "must be one element of ", type.name);
  const Communicator::Use comm(*communicator);
  COMM_CHECK(comm, ncclRedOpCreatePreMulSum, (&op, view.data, type.nccl, ncclScalarDevice, comm));
  return std::make_shared<RedOp>(op, "PRE_MUL_SUM", communicator, type,
                                 hold(py::make_tuple(scalar, owners.object())));
}

void bind_red_op(py::module_& m) {
  py::class_<RedOp, std::shared_ptr<RedOp>> type(m, "RedOp",
                                                 R"(A reduction operator (ncclRedOp_t).

RedOp.SUM, PROD, MAX, MIN and AVG are NCCL's operators. Communicator.pre_mul_sum() creates others.)");
  type.def_property_readonly("name", &RedOp::name, "The name, such as 'SUM'.")
      .def_property_readonly(
          "value", [](const RedOp& op) { return static_cast<unsigned>(op.value()); },
          "The ncclRedOp_t as an integer.")
      .def("close", &RedOp::close,
           R"(Free an operator from pre_mul_sum() (ncclRedOpDestroy).

Does nothing for a built-in operator. Closing twice is allowed.

Raises:
    NcclError: NCCL failed.)")
      .def("__repr__", [](const RedOp& op) { return "RedOp." + op.name(); })
      .def("__reduce__", [](const py::object& self) {
        // By name: unpickling returns the same object for a built-in operator, and raises
        // AttributeError for an operator from pre_mul_sum().
        return py::make_tuple(py::module_::import("builtins").attr("getattr"),
                              py::make_tuple(py::type::of<RedOp>(), self.attr("name")));
      });
  for (const NamedOp& one : kNamedOps)  // PROD has two names as a str
    type.attr(one.upper) = std::make_shared<RedOp>(one.op, one.upper);
}

}  // namespace pynccl::python

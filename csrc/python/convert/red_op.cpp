#include "python/convert/red_op.h"

#include "python/call/fastcall.h"
#include "python/call/held.h"
#include "python/convert/tensor.h"

namespace pynccl::python {

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
  } catch (...) {  // a failed communicator frees its operators itself
  }
}

void RedOp::close() {
  if (!communicator_ || closed_) return;
  closed_ = true;
  if (communicator_->closed()) return;
  const Communicator::Use comm(*communicator_);
  NCCL_CHECK(communicator_->library(), comm, -1, ncclRedOpDestroy, (value_, comm));
}

void RedOp::throw_unless_valid(const DType& dtype, const Communicator& communicator) const {
  if (communicator_) {
    if (closed_) throw py::value_error("op: " + name_ + " is closed");
    if (communicator_.get() != &communicator)
      throw py::value_error("op: " + name_ + " belongs to another communicator");
    if (dtype_->nccl != dtype.nccl)
      throw py::value_error("op: " + name_ + " is for " + dtype_->name + ", the tensor is " +
                            dtype.name);
  }
  if (!dtype.reduces(value_))
    throw py::value_error("op: " + name_ + " is not defined on " + dtype.name);
}

ncclRedOp_t given_op(PyObject* op, const DType& dtype, const Communicator& communicator) {
  if (!op) throw py::value_error(std::string("op: SUM is not defined on ") + dtype.name);
  static PyTypeObject* type = nullptr;  // filled in under the GIL
  if (!type) type = reinterpret_cast<PyTypeObject*>(py::type::of<RedOp>().release().ptr());
  if (Py_TYPE(op) != type) throw_type_error("op", "a RedOp", op);
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
  // NumPy's scalars are instances of numbers.Real, arrays and tensors are not.
  if (py::isinstance(scalar, py::module_::import("numbers").attr("Real"))) {
    std::uint64_t bits = encode_scalar("scalar", scalar.ptr(), type);
    const Communicator::Use comm(*communicator);
    NCCL_CHECK(library, comm, communicator->rank(), ncclRedOpCreatePreMulSum,
               (&op, &bits, type.nccl, ncclScalarHostImmediate, comm));
    return std::make_shared<RedOp>(op, "PRE_MUL_SUM", communicator, type);
  }
  Owners owners;
  TensorView view = view_tensor(owners, "scalar", scalar.ptr());
  check_placement(view, library, communicator->device());
  if (view.count != 1 || view.dtype != &type)
    throw py::value_error("scalar: must be one element of " + std::string(type.name));
  const Communicator::Use comm(*communicator);
  NCCL_CHECK(library, comm, communicator->rank(), ncclRedOpCreatePreMulSum,
             (&op, view.data, type.nccl, ncclScalarDevice, comm));
  return std::make_shared<RedOp>(op, "PRE_MUL_SUM", communicator, type,
                                 hold(py::make_tuple(scalar, owners.object())));
}

}  // namespace pynccl::python

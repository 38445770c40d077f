// RedOp: a reduction operator, either one of NCCL's five or a PreMulSum of one communicator.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "python/convert/dtype.h"

namespace pynccl::python {

class RedOp {
 public:
  RedOp(ncclRedOp_t value, std::string name) : value_(value), name_(std::move(name)) {}
  // Takes ownership of an operator from ncclRedOpCreatePreMulSum. scalar owns the scalar's memory.
  RedOp(ncclRedOp_t value, std::string name, std::shared_ptr<Communicator> communicator,
        const DType& dtype, std::shared_ptr<void> scalar = nullptr);
  ~RedOp();
  RedOp(const RedOp&) = delete;
  RedOp& operator=(const RedOp&) = delete;

  ncclRedOp_t value() const { return value_; }
  const std::string& name() const { return name_; }

  // Throws ValueError if this operator is not defined on the dtype or belongs to another
  // communicator.
  void check(const DType& dtype, const Communicator& communicator) const {
    if (!dtype.reduces(value_) || communicator_) [[unlikely]]
      throw_unless_valid(dtype, communicator);
  }
  void close();

 private:
  void throw_unless_valid(const DType& dtype, const Communicator& communicator) const;

  ncclRedOp_t value_;
  std::string name_;
  std::shared_ptr<Communicator> communicator_;
  const DType* dtype_ = nullptr;
  std::shared_ptr<void> scalar_;
  bool closed_ = false;
};

// The operator of an argument: a RedOp, a str such as "sum", or a value of torch's ReduceOp. Throws
// TypeError for other objects, and ValueError like RedOp::check().
ncclRedOp_t given_op(PyObject* op, const DType& dtype, const Communicator& communicator);

// The operator of an argument; SUM for nullptr.
inline ncclRedOp_t op_from_python(PyObject* op, const DType& dtype,
                                  const Communicator& communicator) {
  if (!op && dtype.reduces(ncclSum)) [[likely]]
    return ncclSum;
  return given_op(op, dtype, communicator);
}

// Creates the operator that multiplies this rank's input by a scalar before the sum. The scalar is
// a number, or a tensor of one element that is read when the operation runs.
std::shared_ptr<RedOp> pre_mul_sum(const std::shared_ptr<Communicator>& communicator,
                                   const py::object& scalar, const py::object& dtype);

}  // namespace pynccl::python

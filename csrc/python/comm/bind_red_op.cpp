// The class RedOp.
#include "python/call/bind.h"
#include "python/convert/red_op.h"

namespace pynccl::python {

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
  for (const auto& [value, name] :
       std::initializer_list<std::pair<ncclRedOp_t, const char*>>{{ncclSum, "SUM"},
                                                                  {ncclProd, "PROD"},
                                                                  {ncclMax, "MAX"},
                                                                  {ncclMin, "MIN"},
                                                                  {ncclAvg, "AVG"}})
    type.attr(name) = std::make_shared<RedOp>(value, name);
}

}  // namespace pynccl::python

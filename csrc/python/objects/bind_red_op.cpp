// The class RedOp.
#include "python/convert/red_op.h"
#include "python/objects/bind.h"

namespace pynccl::python {

void bind_red_op(py::module_& m) {
  py::class_<RedOp, std::shared_ptr<RedOp>> type(m, "RedOp",
                                                 R"(How a reduction combines elements (ncclRedOp_t).

RedOp.SUM, PROD, MAX, MIN and AVG are NCCL's own; Communicator.pre_mul_sum() makes another one.)");
  type.def_property_readonly("name", &RedOp::name)
      .def_property_readonly(
          "value", [](const RedOp& op) { return static_cast<unsigned>(op.value()); },
          "The ncclRedOp_t.")
      .def("close", &RedOp::close, "Frees an operator of one's own (ncclRedOpDestroy).")
      .def("__repr__", [](const RedOp& op) { return "RedOp." + op.name(); })
      .def("__reduce__", [](const py::object& self) {
        // By name, so that a built-in one stays the same object; one's own cannot be found again
        // and says so.
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

// A C++ extension: scales a tensor and sums it over the ranks, on the caller's stream. It links
// neither NCCL nor pynccl. setup.py builds it with or without GPU support.
#include <pybind11/pybind11.h>

#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

// After pybind11, so that functions can take a pynccl::CommunicatorRef.
#include <pynccl/pynccl.h>

namespace py = pybind11;
using namespace pynccl::types;

// data[i] *= scale, as work on a stream (a cudaStream_t). Throws if it cannot be launched.
#ifdef WITH_NVCC
void scale_on_device(float* data, std::size_t count, float scale, void* stream);  // in scale.cu
#else
void scale_on_device(float*, std::size_t, float, void*) {
  throw std::runtime_error("this extension was built without nvcc");
}
#endif

namespace {

struct Floats {
  float* data;
  std::size_t count;
  bool on_device;
};

// The memory of a float32 tensor: torch on either device, CuPy, NumPy.
Floats view(py::object tensor) {
  const bool on_device = py::hasattr(tensor, "__cuda_array_interface__");
  if (!on_device && py::hasattr(tensor, "numpy")) tensor = tensor.attr("numpy")();
  const char* name = on_device ? "__cuda_array_interface__" : "__array_interface__";
  if (!py::hasattr(tensor, name)) throw py::type_error("tensor: expected an array of float32");
  const py::dict facts = tensor.attr(name);
  const auto type = py::cast<std::string>(facts["typestr"]);
  if (type != "<f4") throw py::type_error("tensor: expected float32, got " + type);
  if (facts.contains("strides") && !facts["strides"].is_none())
    throw py::value_error("tensor: it is not contiguous");
  const py::tuple data = facts["data"];
  if (py::cast<bool>(data[1])) throw py::value_error("tensor: it is read-only");
  std::size_t count = 1;
  for (const py::handle extent : py::tuple(facts["shape"])) count *= py::cast<std::size_t>(extent);
  return {reinterpret_cast<float*>(py::cast<std::uintptr_t>(data[0])), count, on_device};
}

// Scaling as work in a stream of hostnccl, which provides the driver's calls for its own streams.
// (Stream 0 is the calling thread.)
struct ScaleOnHost {
  Floats floats;
  float scale;

  static void run(void* self) {
    const std::unique_ptr<ScaleOnHost> work(static_cast<ScaleOnHost*>(self));
    for (std::size_t i = 0; i < work->floats.count; ++i) work->floats.data[i] *= work->scale;
  }
};

void enqueue_scale(const pynccl::CommunicatorRef& comm, const Floats& floats, float scale,
                   cudaStream_t stream) {
  if (comm.on_device()) return scale_on_device(floats.data, floats.count, scale, stream);
  auto work = std::make_unique<ScaleOnHost>(ScaleOnHost{floats, scale});
  const auto launch = PYNCCL_GET_DRIVER(comm, cuLaunchHostFunc);
  if (launch(stream, &ScaleOnHost::run, work.get()) != 0)
    throw std::runtime_error("cuLaunchHostFunc failed");
  work.release();  // run() owns it now
}

void fused_scale_all_reduce(const pynccl::CommunicatorRef& comm, const py::object& tensor,
                            float scale, std::uintptr_t stream) {
  const Floats floats = view(tensor);
  if (floats.on_device != comm.on_device())
    throw py::value_error("tensor: it is not in the memory that the communicator works on");
  const auto all_reduce = PYNCCL_GET(comm, ncclAllReduce);
  const auto handle = comm.handle();
  const auto queue = reinterpret_cast<cudaStream_t>(stream);

  const py::gil_scoped_release released;  // on CPUs the call lasts until the other ranks are there
  enqueue_scale(comm, floats, scale, queue);
  comm.check(
      all_reduce(floats.data, floats.data, floats.count, ncclFloat32, ncclSum, handle, queue),
      "ncclAllReduce");
}

}  // namespace

PYBIND11_MODULE(fused, m) {
  pynccl::translate_exceptions();
  m.def("fused_scale_all_reduce", &fused_scale_all_reduce, py::arg("comm"), py::arg("tensor"),
        py::arg("scale"), py::kw_only(), py::arg("stream") = 0,
        R"(tensor = sum over the ranks of scale * tensor, in place, as work of a stream.

Args:
    comm: a pynccl.nccl.Communicator.
    tensor: contiguous float32 in the communicator's memory; it must live until the work is done.
    scale: this rank's factor.
    stream: a cudaStream_t as an integer, e.g. torch.cuda.current_stream().cuda_stream.)");
}

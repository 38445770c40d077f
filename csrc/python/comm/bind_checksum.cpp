// pack(), unpack() and checksum(): host memory operations of pynccl.weights.
#include <dlpack/dlpack.h>

#include <string>
#include <vector>

#include "nccl/checksum.h"
#include "python/call/bind.h"
#include "python/call/errors.h"
#include "python/call/gil.h"
#include "python/convert/tensor.h"

namespace pynccl::python {
namespace {

TensorView view_on_host(Owners& owners, const char* argument, const py::handle& object,
                        bool written) {
  const TensorView view = view_tensor(owners, argument, object.ptr());
  if (view.device_type != kDLCPU && view.device_type != kDLCUDAHost)
    throw_value_error(argument, "must be in host memory");
  if (written) check_writable(view);
  return view;
}

struct Part {
  char* tensor;
  std::size_t offset;  // in the bucket
  std::size_t size;    // in bytes
};

// Copies between tensors and their positions in a bucket. Returns the checksums.
template <bool packs>
std::vector<std::uint64_t> copy(const py::object& bucket, const py::list& offsets,
                                const py::list& sizes, const py::list& tensors) {
  Owners owners;
  const TensorView place = view_on_host(owners, "bucket", bucket, packs);
  if (offsets.size() != tensors.size() || sizes.size() != tensors.size())
    throw_value_error("tensors", "there are ", tensors.size(), " for ", offsets.size(),
                      " offsets and ", sizes.size(), " sizes");
  std::vector<Part> parts;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const TensorView view = view_on_host(owners, "tensors", tensors[i], !packs);
    const auto offset = offsets[i].cast<std::size_t>();
    if (view.nbytes() != sizes[i].cast<std::size_t>())
      throw_value_error("tensors", "number ", i, " has ", view.nbytes(), " bytes, not ",
                        sizes[i].cast<std::size_t>());
    if (offset > place.nbytes() || view.nbytes() > place.nbytes() - offset)
      throw_value_error("offsets", view.nbytes(), " bytes at ", offset,
                        " are outside the bucket of ", place.nbytes(), " bytes");
    parts.push_back({view.data, offset, view.nbytes()});
  }
  const GilReleased released;
  std::vector<std::uint64_t> sums;
  for (const Part& part : parts) {
    char* const target = packs ? place.data + part.offset : part.tensor;
    const char* const source = packs ? part.tensor : place.data + part.offset;
    sums.push_back(copy_with_checksum(target, source, part.size));
  }
  return sums;
}

std::uint64_t checksum_of(const py::object& tensor) {
  Owners owners;
  const TensorView view = view_on_host(owners, "tensor", tensor, false);
  const GilReleased released;
  return checksum(view.data, view.nbytes());
}

}  // namespace

void bind_checksum(py::module_& m) {
  m.def("pack", &copy<true>, py::arg("bucket"), py::arg("offsets"), py::arg("sizes"),
        py::arg("tensors"),
        R"(Copy contiguous tensors into a bucket in host memory, without the GIL.

Args:
    bucket: a contiguous buffer.
    offsets: the offset of each tensor in the bucket, in bytes.
    sizes: the size of each tensor, in bytes.
    tensors: the tensors.

Returns:
    The checksum of each tensor.)");
  m.def("unpack", &copy<false>, py::arg("bucket"), py::arg("offsets"), py::arg("sizes"),
        py::arg("tensors"),
        "Copy a bucket into tensors, the reverse of pack(). Returns the checksums of the tensors.");
  m.def("checksum", &checksum_of, py::arg("tensor"),
        "The 64-bit checksum of a contiguous tensor in host memory.");
}

}  // namespace pynccl::python

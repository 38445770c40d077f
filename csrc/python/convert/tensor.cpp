#include "python/convert/tensor.h"

#include <dlpack/dlpack.h>

#include "nccl/library.h"
#include "python/call/errors.h"

namespace pynccl::python {

LastDType last_dtype;

namespace {

std::string device_text(int type, int id) {
  switch (type) {
    case kDLCPU:
      return "cpu";
    case kDLCUDA:
      return "cuda:" + std::to_string(id);
    case kDLCUDAHost:
      return "pinned host memory";
    case kDLCUDAManaged:
      return "managed memory of cuda:" + std::to_string(id);
    default:
      return "DLPack device " + std::to_string(type) + ":" + std::to_string(id);
  }
}

[[noreturn]] void throw_unknown(const TensorView& view, const DLTensor& tensor) {
  const bool named = view.owner && py::hasattr(view.owner, "dtype");
  throw_unsupported_dtype(view.argument,
                          named ? std::string(py::str(py::handle(view.owner).attr("dtype")))
                                : "code " + std::to_string(tensor.dtype.code) + " with " +
                                      std::to_string(tensor.dtype.bits) + " bits");
}

std::string tuple_text(const std::int64_t* values, int count) {
  std::string text = "(";
  for (int i = 0; i < count; ++i) text += (i ? ", " : "") + std::to_string(values[i]);
  return text + ")";
}

int device_of(const char* address, const Library& library) {
  int id = 0;
  DRIVER_CHECK(library, PointerGetAttribute,
               (&id, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, reinterpret_cast<CUdeviceptr>(address)));
  return id;
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_misplaced(const TensorView& view, int id,
                                                            const Library& library, int device) {
  const bool host = library.memory() == Memory::kHost;
  throw_value_error(view.argument, "is on ", device_text(view.device_type, id),
                    ", the communicator is on ", host ? "cpu" : device_text(kDLCUDA, device));
}

[[noreturn, gnu::cold, gnu::noinline]] void throw_too_new(const TensorView& view,
                                                          const Library& library) {
  throw_value_error(view.argument, "dtype ", view.dtype->name, " needs NCCL ",
                    version_text(view.dtype->since), ", the loaded one is ",
                    version_text(library.version()));
}

}  // namespace

namespace tensor_mistakes {

// The framework cannot export this tensor (sparse, meta, ...). The message is the argument's name
// followed by the first line of the framework's error.
void throw_refused(const char* argument) {
  const py::error_already_set error;
  const std::string reason = std::string(py::str(error.value()));
  throw_value_error(argument, reason.substr(0, reason.find('\n')));
}

void throw_strided(const TensorView& view, const DLTensor& tensor) {
  throw_value_error(view.argument, "must be contiguous, has shape ",
                    tuple_text(tensor.shape, tensor.ndim), " and strides ",
                    tuple_text(tensor.strides, tensor.ndim));
}

void throw_no_storage(const TensorView& view) {
  throw_value_error(view.argument, "has no storage");
}

void throw_readonly(const TensorView& view) { throw_value_error(view.argument, "is read-only"); }

}  // namespace tensor_mistakes

void look_up_dtype(const TensorView& view, const DLTensor& tensor) {
  const DType* found = find_dtype(tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes);
  if (!found) throw_unknown(view, tensor);
  last_dtype = {std::bit_cast<std::uint32_t>(tensor.dtype), found};
}

void check_placement_slowly(TensorView& view, const Library& library, int device) {
  if (library.version() < view.dtype->since) throw_too_new(view, library);
  const bool host = library.memory() == Memory::kHost;
  const bool cuda = view.device_type == kDLCUDA || view.device_type == kDLCUDAManaged;
  // An empty array has no address.
  if (cuda && view.device_id < 0 && !host)
    view.device_id = view.count ? device_of(view.data, library) : device;
  if (!cuda || view.device_id != device || host)
    throw_misplaced(view, view.device_id, library, device);
}

}  // namespace pynccl::python

// Operations on the CUDA tensors of device.cpp. Those that write tensors of known shape are kernels
// on the current stream, as on a GPU: an operation that is not ordered after them sees wrong
// values. All others run on CPU copies, which waits for the current stream.
#include <ATen/EmptyTensor.h>
#include <ATen/Utils.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/resize_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceGuard.h>
#include <torch/library.h>

#include <memory>
#include <vector>

#include "torch/device.h"

namespace cuda_double {
namespace {

using torch::jit::Stack;

std::size_t bytes_of(const at::Tensor& tensor) {
  return at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), tensor.element_size());
}

// The memory as a CPU tensor.
at::Tensor on_cpu(const at::Tensor& tensor) {
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       tensor.options().device(at::kCPU));
}

struct Kernel {
  c10::OperatorHandle op;
  Stack arguments;
  bool captured;
};

void run(void* data) {
  auto* kernel = static_cast<Kernel*>(data);
  try {
    const at::AutoDispatchBelowADInplaceOrView below;
    Stack stack = kernel->arguments;
    kernel->op.callBoxed(&stack);
  } catch (const std::exception& error) {
    cuda_double_report(error.what());
  }
  if (!kernel->captured) delete kernel;  // a graph runs it again
}

// Enqueues op, whose arguments may be CUDA tensors, on the device's current stream. CPU tensors are
// copied, like kernel arguments passed by value.
void enqueue(const c10::OperatorHandle& op, const c10::Device& device, const Stack& arguments) {
  const CUstream stream = current_stream(device);
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  {
    const DeviceScope scope(device.index());
    check(cuStreamIsCapturing(stream, &status), "cuStreamIsCapturing");
  }
  auto kernel = std::make_unique<Kernel>(Kernel{op, {}, status != CU_STREAM_CAPTURE_STATUS_NONE});
  std::vector<void*> addresses;
  std::vector<std::size_t> sizes;
  for (const c10::IValue& argument : arguments) {
    if (!argument.isTensor() || !argument.toTensor().defined()) {
      kernel->arguments.push_back(argument);
      continue;
    }
    const at::Tensor& tensor = argument.toTensor();
    if (tensor.is_cpu()) {
      kernel->arguments.emplace_back(tensor.detach().clone());
      continue;
    }
    kernel->arguments.emplace_back(on_cpu(tensor));
    addresses.push_back(tensor.data_ptr());
    sizes.push_back(bytes_of(tensor));
  }
  check(static_cast<CUresult>(cuda_double_launch(
            device.index(), stream, op.schema().name().c_str(), run, kernel.get(),
            static_cast<int>(addresses.size()), addresses.data(), sizes.data())),
        "cuda_double_launch");
  kernel.release();
}

// An operation that writes and returns one of its arguments, of known shape.
void in_stream(const c10::OperatorHandle& op, Stack* stack) {
  const auto& schema = op.schema();
  const std::size_t count = schema.arguments().size();
  const Stack arguments(stack->end() - static_cast<std::ptrdiff_t>(count), stack->end());
  at::Tensor written;
  for (std::size_t i = 0; i < count; ++i) {
    const auto* alias = schema.arguments()[i].alias_info();
    if (alias && alias->isWrite()) written = arguments[i].toTensor();
  }
  TORCH_INTERNAL_ASSERT(written.is_cuda(), schema.name(), " writes a tensor of the CPU");
  if (written.numel() > 0) enqueue(op, written.device(), arguments);
  torch::jit::drop(*stack, count);
  stack->emplace_back(written);
}

at::Tensor& copy_(at::Tensor& to, const at::Tensor& from, bool) {
  if (to.numel() == 0) return to;
  if (!to.is_cuda()) {
    wait_for_current(from.device());
    return to.copy_(on_cpu(from));
  }
  if (from.is_cuda() && from.device() != to.device()) wait_for_current(from.device());
  static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
  at::Tensor source = from;
  if (from.is_cuda() && from.device() != to.device()) source = on_cpu(from);
  enqueue(op, to.device(), {to, source, false});
  return to;
}

at::Tensor copy_from_and_resize(const at::Tensor& from, const at::Tensor& to) {
  at::Tensor target = to;
  target.resize_(from.sizes());
  return target.copy_(from);
}

at::Tensor copy_from(const at::Tensor& from, const at::Tensor& to, bool) {
  at::Tensor target = to;
  return target.copy_(from);
}

c10::Device device_or_current(std::optional<c10::Device> device) {
  const c10::Device given = device.value_or(c10::Device(c10::kCUDA));
  return given.has_index()
             ? given
             : c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(current_device()));
}

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::CUDA);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device> device, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_generic(size, c10::GetAllocator(c10::kCUDA), kKeys,
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device> device, std::optional<bool>) {
  const c10::DeviceGuard guard(device_or_current(device));
  return at::detail::empty_strided_generic(size, stride, c10::GetAllocator(c10::kCUDA), kKeys,
                                           c10::dtype_or_default(dtype));
}

at::Scalar local_scalar(const at::Tensor& tensor) {
  wait_for_current(tensor.device());
  return on_cpu(tensor).item();
}

void record_stream(at::Tensor& tensor, at::Stream stream) {
  cuda_double_record_stream(tensor.get_device(), tensor.storage().data_ptr().get(),
                            handle_of(stream));
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source) {
  const auto count = static_cast<std::int64_t>(source.nbytes() / self.element_size());
  return self.set_(std::move(source), 0, {count});
}

const at::Tensor& resize_(const at::Tensor& self, at::IntArrayRef size,
                          std::optional<at::MemoryFormat> format) {
  const c10::DeviceGuard guard(self.device());
  return at::native::resize_(self, size, format);
}

void on_copies(const c10::OperatorHandle& op, Stack* stack) { at::native::cpu_fallback(op, stack); }

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&on_copies>());
}

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("empty.memory_format", empty);
  m.impl("empty_strided", empty_strided);
  m.impl("copy_", copy_);
  m.impl("_copy_from", copy_from);
  m.impl("_copy_from_and_resize", copy_from_and_resize);
  m.impl("_local_scalar_dense", local_scalar);
  m.impl("record_stream", record_stream);
  m.impl("resize_", resize_);
  m.impl("set_.source_Storage", set_storage);
  m.impl("set_.source_Storage_storage_offset", at::native::set_storage_cpu_);
  m.impl("set_.source_Tensor", at::native::set_tensor_);
  m.impl("as_strided", at::native::as_strided_tensorimpl);
  m.impl("view", at::native::view);
  m.impl("_reshape_alias", at::native::_reshape_alias);
  m.impl("unfold", at::native::unfold);
  m.impl("view_as_real", at::native::view_as_real);
  m.impl("view_as_complex", at::native::view_as_complex);
  for (const char* name :
       {"add_.Tensor", "sub_.Tensor", "mul_.Tensor", "div_.Tensor", "add.out", "sub.out", "mul.out",
        "div.out", "fill_.Scalar", "fill_.Tensor", "remainder_.Scalar", "zero_"})
    m.impl(name, torch::CppFunction::makeFromBoxedFunction<&in_stream>());
}

}  // namespace cuda_double

#include "python/convert/buffer.h"

#include <dlpack/dlpack.h>

#include <limits>
#include <utility>

#include "core/device.h"
#include "core/device_memory.h"

namespace pynccl::python {

Buffer::Buffer(std::shared_ptr<Library> library, int device, std::vector<std::int64_t> shape,
               const DType& dtype)
    : library_(std::move(library)), shape_(std::move(shape)), dtype_(dtype) {
  std::size_t elements = 1;
  for (const std::int64_t extent : shape_) {
    if (extent < 0)
      throw std::invalid_argument("shape: " + std::to_string(extent) + " is negative");
    const auto wide = static_cast<std::size_t>(extent);
    if (wide && elements > std::numeric_limits<std::size_t>::max() / dtype.size() / wide)
      throw std::invalid_argument("shape: the size in bytes does not fit");
    elements *= wide;
  }
  const DeviceScope scope(*library_, device);
  device_ = scope.device();
  // ncclMemAlloc rejects 0 bytes.
  data_ = allocate_memory(*library_, std::max<std::size_t>(elements * dtype.size(), 1));
}

Buffer::~Buffer() {
  if (data_) free_memory_later(std::move(library_), data_, device_);
}

void* Buffer::data() const {
  if (!data_) throw std::invalid_argument("buffer: it is closed");
  return data_;
}

std::size_t Buffer::nbytes() const {
  std::size_t bytes = dtype_.size();
  for (const std::int64_t extent : shape_) bytes *= static_cast<std::size_t>(extent);
  return bytes;
}

int Buffer::device_type() const { return library_->memory() == Memory::kHost ? kDLCPU : kDLCUDA; }

void Buffer::fill(TensorView& view) const {
  view.data = static_cast<char*>(data());
  view.dtype = &dtype_;
  view.count = nbytes() / dtype_.size() * dtype_.width;
  view.device_type = device_type();
  view.device_id = device_;
}

void Buffer::close() {
  if (!data_) return;
  free_memory_later(library_, std::exchange(data_, nullptr), device_);
}

}  // namespace pynccl::python

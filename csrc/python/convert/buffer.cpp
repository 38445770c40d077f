#include "python/convert/buffer.h"

#include <dlpack/dlpack.h>

#include <limits>
#include <utility>

#include "comm/device_memory.h"
#include "nccl/device.h"
#include "python/convert/stream.h"

namespace pynccl::python {

Buffer::Buffer(std::shared_ptr<Library> library, int device, std::vector<std::int64_t> shape,
               const DType& dtype)
    : library_(std::move(library)), shape_(std::move(shape)), dtype_(dtype) {
  const std::size_t bytes = bytes_of(shape_, dtype_);
  const DeviceScope scope(*library_, device);
  device_ = scope.device();
  data_ = allocate_memory(*library_, std::max<std::size_t>(bytes, 1));  // 0 bytes are rejected
}

Buffer::Buffer(std::shared_ptr<Library> library, int device, std::vector<std::int64_t> shape,
               const DType& dtype, void* data, std::shared_ptr<void> owner,
               std::function<void()> check)
    : library_(std::move(library)),
      shape_(std::move(shape)),
      dtype_(dtype),
      data_(data),
      device_(device),
      owner_(std::move(owner)),
      check_(std::move(check)) {}

Buffer::~Buffer() { close(); }

void* Buffer::data() const {
  if (!data_) throw std::invalid_argument("buffer: it is closed");
  if (check_) check_();
  return data_;
}

std::size_t Buffer::bytes_of(const std::vector<std::int64_t>& shape, const DType& dtype) {
  std::size_t elements = 1;
  for (const std::int64_t extent : shape) {
    if (extent < 0)
      throw std::invalid_argument("shape: " + std::to_string(extent) + " is negative");
    const auto wide = static_cast<std::size_t>(extent);
    if (wide && elements > std::numeric_limits<std::size_t>::max() / dtype.size() / wide)
      throw std::invalid_argument("shape: the size in bytes does not fit");
    elements *= wide;
  }
  return elements * dtype.size();
}

std::size_t Buffer::nbytes() const { return bytes_of(shape_, dtype_); }

int Buffer::device_type() const { return library_->memory() == Memory::kHost ? kDLCPU : kDLCUDA; }

void Buffer::fill(TensorView& view) const {
  view.data = static_cast<char*>(data());
  view.dtype = &dtype_;
  view.count = nbytes() / dtype_.size() * dtype_.width;
  view.device_type = device_type();
  view.device_id = device_;
}

void Buffer::close() {
  void* data = std::exchange(data_, nullptr);
  check_ = nullptr;
  if (owner_)
    owner_.reset();
  else if (data)
    free_memory_later(library_, data, device_, captured_stream(*library_, device_));
}

}  // namespace pynccl::python

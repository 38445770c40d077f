// Buffer: memory from ncclMemAlloc with a shape and a dtype, or a view of such memory. Collectives
// accept it directly; torch, NumPy and CuPy import it through DLPack.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "nccl/library.h"
#include "python/convert/tensor.h"

namespace pynccl::python {

class Buffer {
 public:
  // Allocates memory on the device.
  Buffer(std::shared_ptr<Library> library, int device, std::vector<std::int64_t> shape,
         const DType& dtype);
  // A view of memory that owner keeps alive. check throws if the memory is no longer usable.
  Buffer(std::shared_ptr<Library> library, int device, std::vector<std::int64_t> shape,
         const DType& dtype, void* data, std::shared_ptr<void> owner,
         std::function<void()> check = {});
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  void* data() const;  // throws std::invalid_argument when closed
  const std::vector<std::int64_t>& shape() const { return shape_; }
  const DType& dtype() const { return dtype_; }
  std::size_t nbytes() const;
  int device_type() const;
  int device_id() const { return device_; }
  void fill(TensorView& view) const;
  void close();
  static std::size_t bytes_of(const std::vector<std::int64_t>& shape, const DType& dtype);

 private:
  std::shared_ptr<Library> library_;
  std::vector<std::int64_t> shape_;
  const DType& dtype_;
  void* data_ = nullptr;
  int device_ = 0;
  std::shared_ptr<void> owner_;  // of a view
  std::function<void()> check_;
};

}  // namespace pynccl::python

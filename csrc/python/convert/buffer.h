// Buffer: memory from ncclMemAlloc with a shape and a dtype. Collectives take it directly; torch,
// NumPy and CuPy by DLPack.
#pragma once

#include <memory>
#include <vector>

#include "core/library.h"
#include "python/convert/tensor.h"

namespace pynccl::python {

class Buffer {
 public:
  // Allocates on the device; shape in elements of dtype.
  Buffer(std::shared_ptr<Library> library, int device, std::vector<std::int64_t> shape,
         const DType& dtype);
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

 private:
  std::shared_ptr<Library> library_;
  std::vector<std::int64_t> shape_;
  const DType& dtype_;
  void* data_ = nullptr;
  int device_ = 0;
};

}  // namespace pynccl::python

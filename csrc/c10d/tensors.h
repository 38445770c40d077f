// Checks of tensors, and NCCL's dtypes and reduction operators for them. A wrong argument raises a
// ValueError or TypeError that names it, before anything is sent.
#pragma once

#include <optional>
#include <vector>

#include "compat.h"
#include "operation.h"

namespace pynccl::dist {

// The dtype and the number of elements that NCCL uses for a tensor.
struct Elements {
  int dtype;  // an ncclDataType_t
  std::size_t count;
};

// Returns the device with an index; an accelerator without one is the current device.
at::Device with_index(const at::Device& device);

// Throws unless the tensor is dense, contiguous and on a device of this type and index.
void check_tensor(const char* name, const at::Tensor& tensor, const at::Device& device);
void check_tensors(const char* name, const std::vector<at::Tensor>& tensors,
                   const at::Device& device);
// Throws unless the tensors have the same dtype.
void check_same_dtype(const char* name, const at::Tensor& tensor, const at::Tensor& other);
// Throws unless they also have the same order of elements in memory. One with another number of
// dimensions, such as a flat buffer, is memory without an order.
void check_same_layout(const char* name, const at::Tensor& tensor, const at::Tensor& other);
void check_length(const char* name, std::size_t length, std::size_t expected);
void check_count(const char* name, const at::Tensor& tensor, std::int64_t expected);
// Returns the only tensor of a list, which must have one.
at::Tensor& only(const char* name, std::vector<at::Tensor>& tensors);

// Throws if tensors of the operation overlap in a way that NCCL does not define.
void check_overlap(const Operation& operation, int rank, int size);

// For operations that only move data: any dtype is valid, dtypes that NCCL lacks are sent as bytes.
Elements moved(const at::Tensor& tensor);
// For reductions.
Elements reduced(const char* name, const at::Tensor& tensor);

// A reduction operator: an ncclRedOp_t, or the factor to create one.
struct Reduction {
  int op = 0;
  std::optional<Factor> factor;
};
Reduction reduction(const c10d::ReduceOp& op, const at::Tensor& tensor);

}  // namespace pynccl::dist

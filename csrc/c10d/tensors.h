// The checks of tensors, and their types and reduction operators as NCCL has them. A wrong argument
// is a ValueError or a TypeError that names it, before anything is sent.
#pragma once

#include <optional>
#include <vector>

#include "compat.h"
#include "operation.h"

namespace pynccl::dist {

// The elements of a tensor as NCCL counts them.
struct Elements {
  int dtype;  // an ncclDataType_t
  std::size_t count;
};

// A device with the index that it means: one of an accelerator without an index is the current one.
at::Device with_index(const at::Device& device);

// Throws unless the tensor is dense, contiguous and on a device of this type and index.
void check_tensor(const char* name, const at::Tensor& tensor, const at::Device& device);
void check_tensors(const char* name, const std::vector<at::Tensor>& tensors,
                   const at::Device& device);
// Throws unless the tensors have the same dtype.
void check_same_dtype(const char* name, const at::Tensor& tensor, const at::Tensor& other);
void check_length(const char* name, std::size_t length, std::size_t expected);
void check_count(const char* name, const at::Tensor& tensor, std::int64_t expected);
// The only tensor of a list that must have one.
at::Tensor& only(const char* name, std::vector<at::Tensor>& tensors);

// Throws where tensors of the operation overlap in a position that NCCL does not define.
void check_overlap(const Operation& operation, int rank, int size);

// For an operation that moves elements: of any dtype, those that NCCL lacks as bytes.
Elements moved(const at::Tensor& tensor);
// For a reduction.
Elements reduced(const char* name, const at::Tensor& tensor);

// The operator of a reduction: an ncclRedOp_t, or a factor for one to be made.
struct Reduction {
  int op = 0;
  std::optional<Factor> factor;
};
Reduction reduction(const c10d::ReduceOp& op, const at::Tensor& tensor);

}  // namespace pynccl::dist

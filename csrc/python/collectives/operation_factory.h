// The factory of Operations: validates the arguments of a collective, send or recv, then builds the
// Operation. The methods of Communicator and the functions of pynccl.mirror all use it.
#pragma once

#include "comm/communicator.h"
#include "python/convert/integer.h"
#include "python/convert/stream.h"
#include "python/convert/tensor.h"

namespace pynccl::python {

// The parameter names and buffer blocks of a method of Communicator that takes a tensor. A buffer
// holds one block, or one block per rank.
struct MethodTraits {
  const char* name;
  const char* root_or_peer;  // the name of the rank parameter, nullptr if there is none
  bool reduces;
  bool takes_out;
  int send_blocks;  // 1, or 0 for one per rank
  int recv_blocks;

  constexpr bool takes_rank() const { return root_or_peer != nullptr; }
  // Whether both buffers hold one block, so that the operation can run in place on one buffer.
  constexpr bool one_block() const { return send_blocks == 1 && recv_blocks == 1; }
};

template <OperationKind K>
constexpr MethodTraits method_traits() {
  switch (K) {
#define OPERATION(name, method, ...) \
  case OperationKind::k##name:       \
    return {#method, __VA_ARGS__};
#define ONE_SIDED(name, method)
#include "comm/operations.inc"
  }
}

// The arguments of a call by name; nullptr for those not passed.
struct OperationArguments {
  Owners* owners = nullptr;  // receives further owners of the memory
  PyObject* tensor = nullptr;
  PyObject* root_or_peer = nullptr;
  PyObject* op = nullptr;
  PyObject* out = nullptr;
  PyObject* stream = nullptr;
  PyObject* count = nullptr;
  PyObject* dtype = nullptr;
  PyObject* config = nullptr;

  PyObject* owner() const { return owners ? owners->get() : nullptr; }
};

// Builds the operation of a call. Throws TypeError and ValueError that name the argument.
template <OperationKind K>
Operation make_operation(Communicator& communicator, const OperationArguments& arguments);

// The same for a tensor that the caller has read already, without a config. stream overrides the
// stream of the arguments unless it is nullptr.
template <OperationKind K>
void make_operation(Communicator& communicator, const OperationArguments& arguments,
                    TensorView& tensor, const cudaStream_t* stream, Operation& operation);

// Builds an Operation from checked values.
template <OperationKind K>
[[gnu::always_inline]] inline Operation build_operation(const DType& dtype, ncclRedOp_t op,
                                                        int root_or_peer, const void* sendbuff,
                                                        void* recvbuff, std::size_t count,
                                                        cudaStream_t stream) {
  return {.kind = K,
          .dtype = dtype.nccl,
          .op = op,
          .root_or_peer = root_or_peer,
          .sendbuff = sendbuff,
          .recvbuff = recvbuff,
          .count = count,
          .stream = stream};
}

// The fast path of make_operation(), for calls in place with no other arguments: args holds the
// tensor, followed by the rank if the method takes one. The tensor must have the type and dtype of
// the previous one. The checks are the same, but return false instead of throwing; the caller then
// falls back to make_operation(), which reports the error.
template <OperationKind K>
[[gnu::always_inline]] inline bool make_plain_operation(Communicator& communicator,
                                                        PyObject* const* args,
                                                        Operation& operation) {
  static constexpr MethodTraits traits = method_traits<K>();
  static_assert(traits.one_block());
  communicator.handle();
  int root_or_peer = 0;
  if constexpr (traits.takes_rank())
    root_or_peer = rank_from_python(traits.root_or_peer, args[1], communicator.nranks());
  const DLPackExchangeAPI* api = last_exchange.api;
  if (Py_TYPE(args[0]) != last_exchange.type || !api) [[unlikely]]
    return false;
  if (last_exchange.keys.refuse(args[0])) [[unlikely]]
    return false;
  DLTensor tensor;
  if (api->dltensor_from_py_object_no_sync(args[0], &tensor) != 0) [[unlikely]] {
    PyErr_Clear();
    return false;
  }
  const Library& library = communicator.library();
  const DType* dtype = last_dtype.dtype;
  const std::int64_t elements = contiguous_elements(tensor);
  if (!like_last_dtype(tensor) || elements <= 0 || !tensor.data ||
      !is_placed(tensor.device.device_type, tensor.device.device_id, library,
                 communicator.device()) ||
      library.version() < dtype->since || (traits.reduces && !dtype->reduces(ncclSum))) [[unlikely]]
    return false;
  char* data = static_cast<char*>(tensor.data) + tensor.byte_offset;
  cudaStream_t stream = nullptr;
  if (library.memory() != Memory::kHost) stream = current_stream(*api, tensor.device);
  operation = build_operation<K>(*dtype, ncclSum, root_or_peer, data, data,
                                 static_cast<std::size_t>(elements) * dtype->width,
                                 in_capture(library, stream));
  return true;
}

}  // namespace pynccl::python

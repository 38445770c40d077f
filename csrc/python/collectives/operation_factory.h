// The checked factory of an Operation: validates the arguments of a collective or message, then
// builds the Operation. The methods of Communicator and the functions of pynccl.mirror, alone or in
// a batch, get their operations here and nowhere else.
#pragma once

#include "comm/communicator.h"
#include "python/collectives/method_traits.h"
#include "python/convert/rank_argument.h"
#include "python/convert/stream.h"
#include "python/convert/tensor.h"

namespace pynccl::python {

// The arguments of a call by name; nullptr for one that was not given.
struct OperationArguments {
  Owners* owners = nullptr;  // gets what owns the memory besides the arguments
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

// The operation of a call. Throws TypeError and ValueError that name the argument.
template <OperationKind K>
Operation make_operation(Communicator& communicator, const OperationArguments& arguments);

// The same, on a tensor that the caller has read already and without a config; on stream, or where
// that is nullptr, on the stream that the arguments give.
template <OperationKind K>
void make_operation(Communicator& communicator, const OperationArguments& arguments,
                    TensorView& tensor, const cudaStream_t* stream, Operation& operation);

// The last step: an Operation of values that have been checked.
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

// The fast path of make_operation(): one tensor in place and nothing else given (args: the tensor,
// and the rank where the method takes one), the tensor of the same type and dtype as the last one.
// It makes the same checks by predicates. False if one of them fails or the call is not of this
// form: then make_operation() handles it and reports mistakes.
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

// One-shot all_reduce: every rank reads the memory of all ranks and adds it up. It suits small
// messages: each rank reads (n - 1) * bytes, and the cost is that of two barriers.
//
// On GPUs: any number of blocks up to the number of barriers of the device communicator.
#include <pynccl/device.h>

// send: `count` elements at `offset` bytes of the window; recv: elsewhere.
struct AllReduceArguments {
  ncclDevComm comm;
  ncclWindow_t window;
  size_t offset;
  void* recv;
  size_t count;
};

PYNCCL_KERNEL(all_reduce_float32, AllReduceArguments, block, a) {
  auto* out = static_cast<float*>(a.recv);
  if (!pynccl::device::all_reduce_one_shot(block, a.comm, a.window, a.offset, out, a.count)) return;
}

// send: anywhere; scratch memory for 2 * capacity elements at `offset` bytes of the window.
struct AllReduceBufferedArguments {
  ncclDevComm comm;
  ncclWindow_t window;
  size_t offset;
  size_t capacity;
  const void* send;
  void* recv;
  size_t count;
};

PYNCCL_KERNEL(all_reduce_buffered_float32, AllReduceBufferedArguments, block, a) {
  const auto* in = static_cast<const float*>(a.send);
  auto* out = static_cast<float*>(a.recv);
  if (!pynccl::device::all_reduce_buffered(block, a.comm, a.window, a.offset, a.capacity, in, out,
                                           a.count)) {
    return;
  }
}

PYNCCL_KERNEL(all_reduce_int32, AllReduceArguments, block, a) {
  auto* out = static_cast<int*>(a.recv);
  if (!pynccl::device::all_reduce_one_shot(block, a.comm, a.window, a.offset, out, a.count)) return;
}

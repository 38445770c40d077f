// What the capsule of Communicator.__pynccl_communicator__() points to: the whole of the binary
// interface between pynccl and an extension of its user. pynccl.h makes C++ of it.
//
// It only ever grows at the end, and size says how much of it there is. What would break it gets
// another name. Functions are found by name, so that neither side knows the other's table.
#pragma once

#include <stddef.h>

#define PYNCCL_CAPSULE_NAME "pynccl.communicator.v1"

extern "C" {

struct PyncclCommunicator {
  size_t size;  // in bytes, as the pynccl that filled it knows it

  // References. The capsule holds one; whoever keeps the pointer beyond the capsule's life takes
  // one of his own. Any thread may call them, with or without the GIL.
  void (*retain)(struct PyncclCommunicator* self);
  void (*release)(struct PyncclCommunicator* self);

  // The ncclComm_t; null from the moment in which the communicator is closed or aborted.
  void* (*handle)(const struct PyncclCommunicator* self);

  // The address of a function of nccl.h in the library that the communicator belongs to
  // ("ncclAllReduce"), null where that library has none.
  void* (*function)(const struct PyncclCommunicator* self, const char* name);

  // The same for the stream calls that pynccl uses, by their names in cuda.h ("cuLaunchHostFunc").
  // On hostnccl they are hostnccl's own, for its own streams.
  void* (*driver_function)(const struct PyncclCommunicator* self, const char* name);

  int rank;
  int nranks;
  int device;        // ordinal
  int version;       // as ncclGetVersion gives it: 23203 is 2.32.3
  int on_device;     // 1: buffers are in GPU memory; 0: in the host's
  const char* path;  // the library's file
};

}  // extern "C"

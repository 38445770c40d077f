// The binary interface between pynccl and C++ extensions: the struct that the capsule of
// Communicator.__pynccl_communicator__() points to. pynccl.h wraps it for C++.
//
// New members are only added at the end; size gives the bytes that are present. An incompatible
// change gets a new capsule name. Functions are looked up by name, so no layout of a function table
// is part of the interface.
#pragma once

#include <stddef.h>

#define PYNCCL_CAPSULE_NAME "pynccl.communicator.v1"

extern "C" {

struct PyncclCommunicator {
  size_t size;  // bytes, in the version of pynccl that filled it

  // Reference counting. The capsule holds one reference; code that keeps the pointer after the
  // capsule is destroyed needs its own. Any thread may call these, with or without the GIL.
  void (*retain)(struct PyncclCommunicator* self);
  void (*release)(struct PyncclCommunicator* self);

  // The ncclComm_t; null after the communicator was closed or aborted.
  void* (*handle)(const struct PyncclCommunicator* self);

  // The address of a function of nccl.h ("ncclAllReduce") in the library of the communicator; null
  // if the library does not have it.
  void* (*function)(const struct PyncclCommunicator* self, const char* name);

  // The same for the driver calls that pynccl uses, by their names in cuda.h ("cuLaunchHostFunc").
  // With hostnccl these are its own functions, for its own streams.
  void* (*driver_function)(const struct PyncclCommunicator* self, const char* name);

  int rank;
  int nranks;
  int device;        // ordinal
  int version;       // of ncclGetVersion: 23203 is 2.32.3
  int on_device;     // 1: buffers are in GPU memory; 0: in host memory
  const char* path;  // of the library's file
};

}  // extern "C"

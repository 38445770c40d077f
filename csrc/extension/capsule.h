// PyncclCommunicator: the struct behind the capsule of Communicator.__pynccl_communicator__(), the
// complete binary interface between pynccl and an extension. pynccl.h wraps it in C++.
//
// New fields are only added at the end, and size is the size in bytes of the struct that pynccl
// filled in. An incompatible change changes the capsule name. Functions are looked up by name, so
// the two sides need not agree on a table.
#pragma once

#include <stddef.h>

#define PYNCCL_CAPSULE_NAME "pynccl.communicator.v1"

extern "C" {

// The functions of nccl.h that PyncclCommunicator::issue calls.
enum PyncclOperationKind {
  PYNCCL_ALL_REDUCE = 0,
  PYNCCL_BROADCAST = 1,
  PYNCCL_REDUCE = 2,
  PYNCCL_ALL_GATHER = 3,
  PYNCCL_REDUCE_SCATTER = 4,
  PYNCCL_ALL_TO_ALL = 5,
  PYNCCL_GATHER = 6,
  PYNCCL_SCATTER = 7,
  PYNCCL_SEND = 8,
  PYNCCL_RECV = 9,
  // Available if size includes in_symmetric_window:
  PYNCCL_PUT_SIGNAL = 10,   // recvbuff: a PyncclTarget; signal 0 of context 0, as for the next two
  PYNCCL_SIGNAL = 11,       // to the peer
  PYNCCL_WAIT_SIGNAL = 12,  // for count signals of the peer
};

// The destination of a put.
struct PyncclTarget {
  const void* window;  // the address of this rank's memory of an open window (Window.address)
  size_t offset;       // bytes from the beginning of the peer's memory
};

// An operation with the arguments of its nccl.h function. Fields that are not arguments of the
// function are ignored.
struct PyncclOperation {
  int kind;          // a PyncclOperationKind
  int dtype;         // an ncclDataType_t
  int op;            // an ncclRedOp_t
  int root_or_peer;  // the root of a collective, the peer of a message
  const void* sendbuff;
  void* recvbuff;
  size_t count;  // in elements of dtype, as the function counts
  void* stream;
};

struct PyncclCommunicator {
  size_t size;  // bytes

  // Reference counting. The capsule holds one reference; code that stores the pointer must take its
  // own. Any thread can call them, with or without the GIL.
  void (*retain)(struct PyncclCommunicator* self);
  void (*release)(struct PyncclCommunicator* self);

  // The ncclComm_t; null once the communicator is closed or aborted.
  void* (*handle)(const struct PyncclCommunicator* self);

  // The address of an nccl.h function ("ncclAllReduce") in the communicator's library; null if the
  // library lacks it.
  void* (*function)(const struct PyncclCommunicator* self, const char* name);

  // The address of a stream call of abi/driver_functions.inc, by its name in cuda.h
  // ("cuLaunchHostFunc"). With hostnccl, it is hostnccl's function for its streams.
  void* (*driver_function)(const struct PyncclCommunicator* self, const char* name);

  int rank;
  int nranks;
  int device;        // the device's ordinal
  int version;       // as from ncclGetVersion: 23203 is 2.32.3
  int on_device;     // 1: buffers are in GPU memory; 0: in host memory
  const char* path;  // the path of the library

  // Issues operations like the methods of Communicator: its deadlines and its flight record apply.
  // Several operations form an NCCL group. seconds: a time limit that replaces the communicator's;
  // 0 for none. The result is an ncclResult_t; if it is not ncclSuccess, report was called with
  // context and pynccl's text. Call it without the GIL if the operations can block.
  int (*issue)(struct PyncclCommunicator* self, const struct PyncclOperation* operations,
               size_t count, double seconds, void (*report)(void* context, const char* text),
               void* context);

  // The estimated duration of the operations as one group, in seconds, without running them
  // (nccl.simulate()); negative if the library has no estimate. All ranks must call it.
  int (*simulate)(struct PyncclCommunicator* self, const struct PyncclOperation* operations,
                  size_t count, double* duration, void (*report)(void* context, const char* text),
                  void* context);

  // Whether the communicator has failed, expired or was closed; the result is like that of issue().
  // Any thread can call it, even while another thread closes the communicator.
  int (*state)(struct PyncclCommunicator* self, void (*report)(void* context, const char* text),
               void* context);

  // 1 if memory lies completely in an open symmetric window of the communicator, as required for
  // the source of a put; else 0.
  int (*in_symmetric_window)(const struct PyncclCommunicator* self, const void* data,
                             size_t nbytes);

  // For traces: the sequence number of the last operation that was issued.
  unsigned long long (*last_operation)(const struct PyncclCommunicator* self);

  // For traces, around a wait for an operation, by the calling thread or by a device stream.
  // begin_wait returns null if nothing is traced, else the argument of end_wait. sequence: the
  // sequence number of the operation; 0 if unknown.
  void* (*begin_wait)(struct PyncclCommunicator* self, void* stream);
  void (*end_wait)(struct PyncclCommunicator* self, void* wait, unsigned long long sequence);
};

}  // extern "C"

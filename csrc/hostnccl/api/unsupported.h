// The functions of nccl.h that hostnccl does not export: currently none. A client that requires one
// fails when it loads the library, not in the call. To omit ncclX, define here
//
//     #define HOSTNCCL_UNSUPPORTED_ncclX 0, 0
#pragma once

// HOSTNCCL_IF_SUPPORTED(name, text): the text, or nothing if the name is defined as above. The two
// values of a defined name move HOSTNCCL_OMIT to the third position.
#define HOSTNCCL_IF_SUPPORTED(name, ...) \
  HOSTNCCL_PICK(HOSTNCCL_UNSUPPORTED_##name, HOSTNCCL_OMIT, HOSTNCCL_KEEP)(__VA_ARGS__)
#define HOSTNCCL_PICK(...) HOSTNCCL_THIRD(__VA_ARGS__, 0, 0)
#define HOSTNCCL_THIRD(first, second, third, ...) third
#define HOSTNCCL_KEEP(...) __VA_ARGS__
#define HOSTNCCL_OMIT(...)

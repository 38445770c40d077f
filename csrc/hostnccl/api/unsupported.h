// The functions of nccl.h that this engine does not have yet. libhostnccl does not export them, so
// that a client finds out when it loads them, not when it calls them. Each name is defined to two
// arguments, which lets the preprocessor ask whether a name is here: see HOSTNCCL_HAS.
#pragma once

// HOSTNCCL_IF_SUPPORTED(name, text): text, unless name is for later.
#define HOSTNCCL_IF_SUPPORTED(name, ...) \
  HOSTNCCL_PICK(HOSTNCCL_UNSUPPORTED_##name, HOSTNCCL_OMIT, HOSTNCCL_KEEP)(__VA_ARGS__)
#define HOSTNCCL_PICK(...) HOSTNCCL_THIRD(__VA_ARGS__, 0, 0)
#define HOSTNCCL_THIRD(first, second, third, ...) third
#define HOSTNCCL_KEEP(...) __VA_ARGS__
#define HOSTNCCL_OMIT(...)

/* Calls in a loop: the seconds of n of them. */
#include <stddef.h>
#include <time.h>

typedef int (*AllReduce)(const void*, void*, size_t, int, int, void*, void*);
typedef void (*Kernel)(void*);

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* ncclAllReduce; the negative result of the first call that fails. */
double loop_all_reduce(void* all_reduce, const void* send, void* recv, size_t count, int dtype,
                       int op, void* comm, void* stream, long n) {
  double start = now();
  for (long i = 0; i < n; ++i) {
    int result = ((AllReduce)all_reduce)(send, recv, count, dtype, op, comm, stream);
    if (result != 0) return -result;
  }
  return now() - start;
}

/* A kernel that is compiled for CPUs. */
double loop_kernel(void* kernel, void* arguments, long n) {
  double start = now();
  for (long i = 0; i < n; ++i) ((Kernel)kernel)(arguments);
  return now() - start;
}

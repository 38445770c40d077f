/* ncclAllReduce in a loop: the seconds of so many calls, or the negative of an error. */
#include <stddef.h>
#include <time.h>

typedef int (*AllReduce)(const void*, void*, size_t, int, int, void*, void*);

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

/* The seconds of n calls; the negative result of the first that fails. */
double loop(void* all_reduce, void* buffer, size_t count, int dtype, int op, void* comm,
            void* stream, long n) {
  double start = now();
  for (long i = 0; i < n; ++i) {
    int result = ((AllReduce)all_reduce)(buffer, buffer, count, dtype, op, comm, stream);
    if (result != 0) return -result;
  }
  return now() - start;
}

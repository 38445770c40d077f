// The double's own C API, for tests: tests/doubles/library.py calls it through ctypes.
#pragma once

#include "driver/record.h"

extern "C" {

// Starts an empty record of calls, or stops it. calls() copies them and returns their number.
void cuda_double_record(int start);
size_t cuda_double_calls(cuda_double::RecordedCall* out, size_t most);

// Violations of the memory rules since the last clear.
size_t cuda_double_violations();
size_t cuda_double_violation(size_t index, char* text, size_t most);  // returns its length
void cuda_double_report(const char* text);
void cuda_double_clear_violations();

// Calls with a device argument work with its context current.

// Keeps the GPU busy: the stream does nothing for this time.
int cuda_double_busy(int device, cuda_double::CUstream stream, double seconds);
// The same until *released is not 0.
int cuda_double_hold(int device, cuda_double::CUstream stream, const int* released);

// Blocks every thread that queries a stream or an event, until this is called with 0. Returns the
// number of blocked threads.
int cuda_double_block_queries(int block);

// A kernel: calls function(data) in stream order, on device memory.
int cuda_double_launch(int device, cuda_double::CUstream stream, const char* name,
                       cuda_double::CUhostFn kernel, void* data, int buffers,
                       void* const* addresses, const size_t* sizes);
// Disables kernels from here on, because the interpreter that owns their functions is ending.
void cuda_double_stop_kernels();

void* cuda_double_allocate(int device, cuda_double::CUstream stream, size_t bytes);
void cuda_double_free(void* memory);
void cuda_double_record_stream(int device, void* memory, cuda_double::CUstream stream);
// The device of an address, or -1 if it is not device memory.
int cuda_double_device_of(const void* address);
}

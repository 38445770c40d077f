// The only function that needs a GPU compiler: scale.cu implements it, or scale_nowhere.cpp reports
// that it is missing.
#pragma once

#include <cstddef>

// data[i] *= scale, as work on a stream (a cudaStream_t). Throws std::runtime_error if it cannot be
// launched.
void scale_on_device(float* data, std::size_t count, float scale, void* stream);

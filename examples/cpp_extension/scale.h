// The one thing that needs a GPU's compiler: scale.cu has it, or scale_nowhere.cpp says that there
// is none.
#pragma once

#include <cstddef>

// data[i] *= scale, as work of a stream (a cudaStream_t). Throws std::runtime_error where it cannot
// be launched.
void scale_on_device(float* data, std::size_t count, float scale, void* stream);

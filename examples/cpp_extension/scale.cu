// NVRTC compiles only the kernel, nvcc the launch as well.
extern "C" __global__ void scale_kernel(float* data, unsigned long long count, float scale) {
  const unsigned long long step = static_cast<unsigned long long>(gridDim.x) * blockDim.x;
  for (unsigned long long i =
           blockIdx.x * static_cast<unsigned long long>(blockDim.x) + threadIdx.x;
       i < count; i += step)
    data[i] *= scale;
}

#ifndef __CUDACC_RTC__
#include <algorithm>
#include <stdexcept>
#include <string>

void scale_on_device(float* data, std::size_t count, float scale, void* stream) {
  if (count == 0) return;
  constexpr std::size_t kThreads = 256, kBlocks = 1024;
  const auto blocks = static_cast<unsigned>(std::min((count + kThreads - 1) / kThreads, kBlocks));
  scale_kernel<<<blocks, kThreads, 0, static_cast<cudaStream_t>(stream)>>>(data, count, scale);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess)
    throw std::runtime_error(std::string("scale_kernel: ") + cudaGetErrorString(error));
}
#endif

#include <stdexcept>

#include "scale.h"

void scale_on_device(float*, std::size_t, float, void*) {
  throw std::runtime_error("this extension was built without nvcc");
}

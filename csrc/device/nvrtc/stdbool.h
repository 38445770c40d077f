// For NVRTC, which has no C headers; C++ needs nothing of it.
#pragma once

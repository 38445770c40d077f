// For NVRTC, which has no C headers; C++ needs no definitions from it.
#pragma once

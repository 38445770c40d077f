# CMAKE_PROJECT_INCLUDE of the instrumented build: adds flush.cpp to the libraries once they are
# defined.
function(pynccl_add_flush)
  foreach(library _C hostnccl hostnccl_preload plugin)
    target_sources(${library} PRIVATE "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/flush.cpp")
  endforeach()
endfunction()
cmake_language(DEFER CALL pynccl_add_flush)
# Most of the compile time is spent on these headers.
cmake_language(DEFER CALL target_precompile_headers _C PRIVATE
  <pybind11/pybind11.h> <algorithm> <memory> <mutex> <optional> <string> <vector>)

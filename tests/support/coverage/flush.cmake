# CMAKE_PROJECT_INCLUDE of the instrumented build: adds flush.cpp to the libraries, once they are
# there.
function(pynccl_add_flush)
  foreach(library _C hostnccl hostnccl_preload plugin)
    target_sources(${library} PRIVATE "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/flush.cpp")
  endforeach()
endfunction()
cmake_language(DEFER CALL pynccl_add_flush)
# Without debug information to speak of, most of the compiler's time is for these headers.
cmake_language(DEFER CALL target_precompile_headers _C PRIVATE
  <pybind11/pybind11.h> <algorithm> <memory> <mutex> <optional> <string> <vector>)

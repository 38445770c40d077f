"""NVIDIA's run-time compiler for CUDA C++, which needs no GPU."""

from __future__ import annotations

import ctypes

__all__ = ["Nvrtc"]


class Nvrtc:
    """As much of nvrtc.h as compiling needs."""

    def __init__(self) -> None:
        from cuda.pathfinder import load_nvidia_dynamic_lib

        self._library = ctypes.CDLL(load_nvidia_dynamic_lib("nvrtc").abs_path)

    def compile(self, source: str, architecture: int, *options: str) -> bytes:
        """Machine code for an architecture.

        Raises:
            ValueError: the source does not compile; the text is the compiler's.
        """
        program, lib = ctypes.c_void_p(), self._library
        code = lib.nvrtcCreateProgram(ctypes.byref(program), source.encode(), None, 0, None, None)
        assert code == 0
        try:
            words = [f"--gpu-architecture=sm_{architecture}", "-std=c++17", *options]
            array = (ctypes.c_char_p * len(words))(*(word.encode() for word in words))
            if lib.nvrtcCompileProgram(program, len(words), array) != 0:
                raise ValueError(self._fetch(program, "ProgramLog").decode())
            return self._fetch(program, "CUBIN")
        finally:
            lib.nvrtcDestroyProgram(ctypes.byref(program))

    def _fetch(self, program: ctypes.c_void_p, what: str) -> bytes:
        size = ctypes.c_size_t()
        assert self._library[f"nvrtcGet{what}Size"](program, ctypes.byref(size)) == 0
        buffer = ctypes.create_string_buffer(size.value)
        assert self._library[f"nvrtcGet{what}"](program, buffer) == 0
        return buffer.raw

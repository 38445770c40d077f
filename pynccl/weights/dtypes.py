"""The dtypes by their names, which are those of torch and of NumPy with ml_dtypes."""

from __future__ import annotations

__all__ = ["size_of"]

_SIZES = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("float8_e8m0fnu", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}


def size_of(dtype: str) -> int:
    """The bytes of an element.

    Raises:
        ValueError: there is no such dtype.
    """
    try:
        return _SIZES[dtype]
    except (KeyError, TypeError):
        raise ValueError(f"dtype: {dtype!r} is not known") from None

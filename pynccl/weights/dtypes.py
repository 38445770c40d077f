"""Dtypes by name; the names are those of torch, and of NumPy with ml_dtypes."""

from __future__ import annotations

__all__ = ["converts", "size_of"]

_SIZES = {
    **dict.fromkeys(("bool", "int8", "uint8"), 1),
    **dict.fromkeys(("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"), 1),
    **dict.fromkeys(("float8_e8m0fnu", "float4_e2m1fn_x2"), 1),
    **dict.fromkeys(("int16", "uint16", "float16", "bfloat16"), 2),
    **dict.fromkeys(("int32", "uint32", "float32"), 4),
    **dict.fromkeys(("int64", "uint64", "float64", "complex64"), 8),
    "complex128": 16,
}

# Significant bits, without the sign of integers.
_UNSIGNED = {"bool": 1, "uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
_SIGNED = {"int8": 7, "int16": 15, "int32": 31, "int64": 63}
_FLOATING = {
    **dict.fromkeys(("float8_e5m2", "float8_e5m2fnuz"), 3),
    **dict.fromkeys(("float8_e4m3fn", "float8_e4m3fnuz"), 4),
    **{"bfloat16": 8, "float16": 11, "float32": 24, "float64": 53},
}
_COMPLEX = {"complex64": 24, "complex128": 53}
_POWERS = "float8_e8m0fnu"  # powers of two
_POWER_TARGETS = frozenset(("bfloat16", "float32", "float64"))  # dtypes that contain them


def converts(source: str, target: str) -> bool:
    """Whether values of a dtype may be converted to another.

    Floating-point values are rounded to other floating-point types, and complex values to other
    complex types. Other conversions are allowed if every value is preserved.
    """
    if source == target:
        return True
    if source == _POWERS:
        return target in _POWER_TARGETS
    if source in _FLOATING:
        return target in _FLOATING or target in _COMPLEX
    if source in _COMPLEX:
        return target in _COMPLEX
    bits = {**_UNSIGNED, **_SIGNED}.get(source)
    if bits is None or target == "bool":
        return False
    wide = {**_SIGNED, **_FLOATING, **_COMPLEX}
    if source in _UNSIGNED:
        wide |= _UNSIGNED
    return bits <= wide.get(target, 0)


def size_of(dtype: str) -> int:
    """The bytes of an element.

    Raises:
        ValueError: the dtype is not supported.
    """
    try:
        return _SIZES[dtype]
    except (KeyError, TypeError):
        raise ValueError(f"dtype: {dtype!r} is not supported") from None

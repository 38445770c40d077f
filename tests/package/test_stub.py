"""Proves that the stub of the extension module follows the lists in csrc/abi."""

from __future__ import annotations

from tools import stub


def test_the_stub_is_generated() -> None:
    text = stub.STUB.read_text()
    assert stub.generated(text) == text
    assert stub.generated(text.replace("    blocking: int\n", "")) == text

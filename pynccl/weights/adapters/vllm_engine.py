"""The engines that pynccl.weights.adapters.vllm registers; importing them imports vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from vllm.distributed.weight_transfer import base

from pynccl.weights.adapters.beside import beside, open_session
from pynccl.weights.receiver import WeightReceiver
from pynccl.weights.source import Spec

if TYPE_CHECKING:
    from typing_extensions import Self

    from pynccl.weights.report import Report
    from pynccl.weights.sender import WeightSender

__all__ = [
    "InitInfo",
    "TrainerInitInfo",
    "TrainerWeightTransferEngine",
    "UpdateInfo",
    "WeightTransferEngine",
]


@dataclass
class InitInfo(base.WeightTransferInitInfo):  # type: ignore[misc]
    """Arguments with which a worker joins the session: see :class:`WeightReceiver`."""

    address: str
    timeout: float = 300.0
    key: str | None = field(default=None, repr=False)
    insecure: bool = False


@dataclass
class UpdateInfo(base.WeightTransferUpdateInfo):  # type: ignore[misc]
    """Arguments of an update."""

    timeout: float | None = None  # seconds to wait for it to begin; None: no limit


class WeightTransferEngine(base.WeightTransferEngine):  # type: ignore[misc]
    """Receives versions of a :class:`WeightSender` in a vLLM worker."""

    init_info_cls = InitInfo
    update_info_cls = UpdateInfo
    _receiver: WeightReceiver | None = None

    def init_transfer_engine(self, init_info: InitInfo) -> None:
        """Join the session, instead of an earlier one."""
        self.shutdown()
        self._receiver = WeightReceiver(
            init_info.address,
            library="torch",
            timeout=init_info.timeout,
            key=init_info.key,
            insecure=init_info.insecure,
        )

    def start_weight_update(self) -> None:
        """Do nothing: reloading begins when a version is verified."""

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Receive the next version, verify it, and load it into the target model."""
        from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        if self._receiver is None:
            raise RuntimeError("init_transfer_engine was not called")
        self._receiver.receive(update_info.timeout)
        initialize_layerwise_reload(self.model)
        with disable_mtp_completeness_check():
            self.model.load_weights(list(self._receiver.tensors.items()))

    def finish_weight_update(self) -> None:
        """Process the layers that are not processed while they are loaded, such as attention."""
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """Leave the session."""
        if self._receiver is not None:
            self._receiver.close()
        self._receiver = None


@dataclass
class TrainerInitInfo(base.TrainerInitInfo):  # type: ignore[misc]
    """Arguments of a trainer rank; rank 0 sends.

    Attributes:
        receivers: the number of vLLM's workers.
        timeout: seconds for each wait of a transfer.
        host: the address at which rank 0 listens; None determines one.
        key: as for :class:`pynccl.weights.adapters.trl.WeightTransfer`.
    """

    backend: ClassVar[str] = "pynccl"

    receivers: int
    timeout: float = 1800.0
    host: str | None = None
    key: str | None = field(default=None, repr=False)


class TrainerWeightTransferEngine(base.TrainerWeightTransferEngine):  # type: ignore[misc]
    """Sends versions to vLLM's workers.

    Attributes:
        report: of the last version, on rank 0.
    """

    init_info_cls = TrainerInitInfo
    report: Report | None = None
    _sender: WeightSender | None = None
    _timeout = 0.0

    @classmethod
    def trainer_init(
        cls,
        init_info: TrainerInitInfo,
        *,
        client: Any,  # noqa: ANN401
        source: Any = None,  # noqa: ANN401
    ) -> Self:
        """Open the session, and make vLLM's workers join it. Rank 0 must own all tensors.

        Raises:
            ValueError: there is no source, or rank 0 does not own a tensor.
        """
        if source is None:
            raise ValueError("source: a WeightSource is required")
        missing = [
            one.name
            for one in _metadata(source)
            if 0 not in (getattr(one, "owners", None) or (0,))  # owners: from vLLM 0.33 on
        ]
        if missing:
            raise ValueError(f"source: rank 0, which sends, does not own {missing[0]!r}")
        engine: Self = cls(client=client, source=source, is_sender=init_info.is_sender)
        engine.rank = init_info.rank  # an argument from vLLM 0.33 on
        if engine.is_sender:
            engine._timeout = init_info.timeout
            engine._sender, info = open_session(
                init_info.receivers, init_info.timeout, init_info.host, init_info.key
            )
            client.init_weight_transfer_engine(info)
        return engine

    def send_weights(self) -> None:
        """Send a version; ranks other than 0 only take part in producing the tensors.

        Raises:
            RuntimeError: the engine was shut down.
            WeightsError: see :meth:`WeightSender.send`; also if an attempt failed, since the other
                ranks produce the tensors only once.
            Exception: raised by the client.
        """
        source, sender = self.source, self._sender
        if not self.is_sender:
            for _ in _tensors(source):
                pass
            return
        if sender is None:
            raise RuntimeError("the engine was shut down")
        metadata = {one.name: Spec.of(one) for one in _metadata(source)}
        tensors = _tensors(source)
        self.client.start_weight_update()
        self.report = beside(
            sender,
            lambda: self.client.update_weights({"timeout": self._timeout}),
            lambda: sender.send(lambda: tensors, metadata=metadata),
            self.client.finish_weight_update,
        )

    def shutdown(self) -> None:
        """End the session."""
        if self._sender is not None:
            self._sender.close()
        self._sender = None


def _metadata(source: Any) -> list[Any]:  # noqa: ANN401
    """The metadata of a source, which vLLM 0.32 returns from a method."""
    metadata: Any = source.metadata
    return list(metadata() if callable(metadata) else metadata)


def _tensors(source: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401
    """The full tensors of a source with their names; vLLM 0.32 iterates over the source itself."""
    return iter(source.iter_full() if hasattr(source, "iter_full") else source)

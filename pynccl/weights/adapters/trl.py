"""TRL's weight transfer to a vLLM server, over pynccl.weights.

    from pynccl.weights.adapters.trl import WeightTransfer

    # the server: vllm serve ... --weight-transfer-config '{"backend": "pynccl"}'
    client = VLLMClient(url)  # of trl.experimental.async_grpo
    trainer = AsyncGRPOTrainer(..., weight_transfer=WeightTransfer(client))

It implements TRL's WeightTransferProtocol. Written for TRL 1.16, with vLLM 0.33.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pynccl.weights.adapters.beside import beside, open_session
from pynccl.weights.report import Report
from pynccl.weights.sender import WeightSender
from pynccl.weights.source import Metadata, Spec

__all__ = ["WeightTransfer"]

_CONTROL_SECONDS = 300  # for a request that transfers no weights


class WeightTransfer:
    """Sends a trainer's weights to the workers of a vLLM server, in a session.

    Args:
        client: TRL's client of the server: trl.experimental.async_grpo.vllm_client.VLLMClient.
        metadata: of all tensors, in the order in which the trainer produces them. With None, the
            tensors of the first version are kept until it is sent, and later versions use their
            metadata.
        timeout: seconds for each wait of a transfer.
        host: the address at which this process listens; None determines one.
        key: of the session. It is passed to the workers in the same request as the address, so use
            https over networks that others can read. None uses PYNCCL_WEIGHTS_KEY, which must also
            be set for the workers and is not sent; if it is not set, a new key.

    Attributes:
        report: of the last version.
    """

    def __init__(
        self,
        client: Any,  # noqa: ANN401
        *,
        metadata: Metadata | None = None,
        timeout: float = 1800.0,
        host: str | None = None,
        key: str | None = None,
    ) -> None:
        self._client = client
        self._metadata = metadata
        self._timeout = timeout
        self._host = host
        self._key = key
        self._sender: WeightSender | None = None
        self.report: Report | None = None

    def init_weight_transfer(self) -> None:
        """Make the server's workers join the session."""
        self._client.wait_for_server_ready()
        workers = self._client.get_world_size()
        self._sender, info = open_session(workers, self._timeout, self._host, self._key)
        self._client.init_weight_transfer_engine(info, timeout=self._timeout)

    def pause(self) -> None:
        """Pause the server's requests."""
        self._client.pause(timeout=_CONTROL_SECONDS)

    def resume(self) -> None:
        """Resume the server's requests."""
        self._client.resume(timeout=_CONTROL_SECONDS)

    def send_weights(self, iterator: Iterable[tuple[str, Any]]) -> None:
        """Send a version of names and tensors.

        Raises:
            RuntimeError: init_weight_transfer() was not called.
            WeightsError: see :meth:`WeightSender.send`; also if an attempt failed, and the iterator
                is not a list, so that it cannot start again.
            Exception: raised by the client. If the server failed before the version was sent, the
                session is aborted.
        """
        sender = self._sender
        if sender is None:
            raise RuntimeError("init_weight_transfer() was not called")
        self._client.start_weight_update(timeout=_CONTROL_SECONDS)
        self.report = beside(
            sender,
            lambda: self._client.update_weights({"timeout": self._timeout}, timeout=self._timeout),
            lambda: self._send(sender, iterator),
            lambda: self._client.finish_weight_update(timeout=self._timeout),
        )

    def destroy(self) -> None:
        """End the session."""
        if self._sender is not None:
            self._sender.close()
        self._sender = None

    def _send(self, sender: WeightSender, iterator: Iterable[tuple[str, Any]]) -> Report:
        if self._metadata is not None:
            return sender.send(lambda: iterator, metadata=self._metadata)
        tensors = {name: tensor.detach() for name, tensor in iterator}
        report = sender.send(tensors)
        self._metadata = {name: Spec.of(tensor) for name, tensor in tensors.items()}
        return report

"""The settings that sender 0 decides for all members: bucket sizes and transport."""

from __future__ import annotations

from dataclasses import dataclass

from pynccl.weights.messages import Transport

__all__ = ["Options"]

# In bytes. Smaller buckets cause more waits between the members. Larger ones need more memory.
# Those that are copied from should stay in the caches.
_BUCKETS = {"shared": 1 << 20, "host": 16 << 20, "cuda": 64 << 20}
_DIRECT = {"shared": 1 << 20, "host": 256 << 10, "cuda": 4 << 20}


@dataclass(frozen=True)
class Options:
    """The leader's settings for all members.

    Attributes:
        senders: the number of senders.
        receivers: the number of receivers that the first version waits for.
        bucket_bytes: size of a bucket; None depends on the provider.
        direct_bytes: tensors of at least this size are not packed; None depends on the provider.
        transport: how buckets reach the receivers; None depends on the provider.
        measures_link: whether new communicators are measured.
    """

    senders: int
    receivers: int
    bucket_bytes: int | None
    direct_bytes: int | None
    transport: Transport | None
    measures_link: bool

    def transport_on(self, provider: str) -> Transport:
        """The transport for a provider.

        Raises:
            ValueError: the transport only supports CPUs.
        """
        if self.transport == "shared" and provider != "host":
            raise ValueError("transport: 'shared' is for CPUs, and the tensors are on GPUs")
        return self.transport or ("shared" if provider == "host" else "broadcast")

    def sizes(self, provider: str) -> tuple[int, int]:
        """The sizes of a bucket and of direct tensors for a provider."""
        key = "shared" if self.transport_on(provider) == "shared" else provider
        bucket = self.bucket_bytes or _BUCKETS[key]
        return bucket, min(self.direct_bytes or _DIRECT[key], bucket)

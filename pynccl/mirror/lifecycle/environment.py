"""Values that a launcher passes in the environment."""

from __future__ import annotations

import os

__all__ = ["get_node_local_rank", "is_torchelastic_launched"]


def is_torchelastic_launched() -> bool:
    """See torch.distributed.is_torchelastic_launched.

    Returns:
        Whether ``TORCHELASTIC_RUN_ID`` is set.
    """
    return os.environ.get("TORCHELASTIC_RUN_ID") is not None


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """See torch.distributed.get_node_local_rank."""
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    if fallback_rank is not None:
        return int(fallback_rank)
    raise RuntimeError(
        "LOCAL_RANK is not in the environment. Consider passing fallback_rank to allow "
        "`get_node_local_rank` to work, assuming you are not running in a multi-device context "
        "and want the code to run locally instead."
    )

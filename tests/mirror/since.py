"""The torch version that the mirror follows, and the version that introduced each newer name.

Names that exist in torch 2.11, the oldest tested version, are not listed.
"""

from __future__ import annotations

__all__ = ["MIRRORED_TORCH", "SINCE"]

MIRRORED_TORCH = (2, 15)

# A name of torch.distributed, a parameter as "function(parameter)", or a member as "Class.member".
SINCE: dict[str, tuple[int, int]] = {
    "barrier(timeout)": (2, 12),
    "new_group(sort_ranks)": (2, 12),
    "split_group(backend)": (2, 13),
    "all_gather_single": (2, 13),
    "reduce_scatter_single": (2, 13),
    "gather_into_tensor": (2, 14),
    "gather_single": (2, 14),
    "get_backend_impl": (2, 14),
    "set_timeout": (2, 14),
    "all_gather_object(weights_only)": (2, 14),
    "broadcast_object_list(weights_only)": (2, 14),
    "gather_object(weights_only)": (2, 14),
    "recv_object_list(weights_only)": (2, 14),
    "scatter_object_list(weights_only)": (2, 14),
    "send_object_list(weights_only)": (2, 14),
    "ProcessGroup.get_backend": (2, 14),
    "Work.timeout": (2, 14),
}

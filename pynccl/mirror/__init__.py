"""torch.distributed's functions over pynccl; ``import pynccl as dist`` gives them.

The folders, each using only those before it:

* base: errors, operators, checks, backends, the store, the watchdog;
* group: a process group, its communicators and streams, and the operations on it;
* world: the groups of this process;
* lifecycle: how groups are made and destroyed;
* api: the public functions on tensors and objects, which resolve the group and the ranks and call
  the group's operations; its module public has every public name, for ``pynccl.__getattr__``.
"""

__all__: list[str] = []

"""torch.distributed's functions over pynccl, available as ``import pynccl as dist``.

The modules, each of which depends only on those before it:

* base: errors, operators, checks, backends, the job;
* group: a process group, its communicators and streams;
* world: the groups of this process;
* lifecycle: creation and destruction of groups;
* api: the public functions on tensors and objects; api.public collects every public name for
  ``pynccl.__getattr__``.
"""

__all__: list[str] = []

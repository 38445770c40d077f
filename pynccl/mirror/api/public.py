"""Every public name of the mirror, for pynccl.__getattr__."""

# ruff: noqa: F403

from pynccl.mirror.api.barriers import *
from pynccl.mirror.api.collectives import *
from pynccl.mirror.api.lists import *
from pynccl.mirror.api.objects import *
from pynccl.mirror.api.p2p import *
from pynccl.mirror.api.torch_names import *
from pynccl.mirror.base.backend import *
from pynccl.mirror.base.errors import *
from pynccl.mirror.base.operators import *
from pynccl.mirror.group.process_group import *
from pynccl.mirror.group.work import *
from pynccl.mirror.lifecycle.destroy import *
from pynccl.mirror.lifecycle.init import *
from pynccl.mirror.lifecycle.new_group import *
from pynccl.mirror.lifecycle.shrink import *
from pynccl.mirror.lifecycle.split import *
from pynccl.mirror.world import *

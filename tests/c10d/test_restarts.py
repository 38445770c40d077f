"""Proves that ranks restarted by torchrun form a new group, although its store still contains the
keys of the ranks that failed.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import warm
from tests.support.commands import run_python

pytestmark = pytest.mark.long

_SCRIPT = """
import os, sys
import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

mirrored = sys.argv[1] == "mirror"
if mirrored:
    import pynccl as dist
else:
    import torch.distributed as dist
    import pynccl.c10d

def main():
    attempt, rank = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["RANK"]
    if attempt + rank == "01":
        sys.exit("rank 1 ends before it joins")
    dist.init_process_group("host" if mirrored else "pynccl")
    ones = torch.ones(1)
    dist.all_reduce(ones)
    if attempt + rank == "11":
        os.kill(os.getpid(), 9)
    dist.all_reduce(ones, group=dist.new_group([0, 1]))
    print(f"attempt {attempt}: {ones.item():g}", flush=True)
    dist.destroy_process_group()

config = LaunchConfig(1, 1, 2, start_method="fork", rdzv_backend="c10d", monitor_interval=0.1,
                      rdzv_endpoint="127.0.0.1:0", max_restarts=2)
elastic_launch(config, main)()
"""


@pytest.mark.parametrize("front_end", ["mirror", "backend"])
def test_restarted_ranks_form_a_new_group(tmp_path: Path, front_end: str) -> None:
    script = tmp_path / "script.py"
    script.write_text(_SCRIPT)
    done = run_python(str(script), front_end, timeout=120, popen=warm.WholePopen)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("attempt 2: 4") == 2, done.stdout

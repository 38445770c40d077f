"""torchrun --nproc-per-node N SCRIPT, whose ranks are forks of this process with torch."""

from __future__ import annotations

import os
import signal
import sys

from torch._C._distributed_c10d import TCPStore

from tests.support import warm
from tests.support.commands import free_port


def main() -> int:
    """Run the ranks, and end the others after one has failed. Returns the exit status."""
    option, nranks, *arguments = sys.argv[1:]
    assert option == "--nproc-per-node", option
    port = free_port()
    os.environ |= {"WORLD_SIZE": nranks, "LOCAL_WORLD_SIZE": nranks, "MASTER_ADDR": "localhost"}
    os.environ |= {"MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    ranks = set()
    for rank in map(str, range(int(nranks))):
        pid = os.fork()
        if pid == 0:
            os.environ |= {"RANK": rank, "LOCAL_RANK": rank}
            warm.run(warm.program(arguments, sys.path[1:]), whole=False)
        ranks.add(pid)
    store = TCPStore("localhost", port, is_master=True, wait_for_workers=False)
    failed = False
    while ranks:
        pid, status = os.wait()
        ranks.discard(pid)
        if status and not failed:
            failed = True
            for other in ranks:
                os.kill(other, signal.SIGTERM)
    del store
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

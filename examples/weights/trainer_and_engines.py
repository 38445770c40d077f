"""A trainer sends weights to two engines; one is killed, and a new one joins.

Run: python examples/weights/trainer_and_engines.py

The trainer (NumPy) changes its weights and sends each version. The engines receive directly into
their own set, and each version is committed once all checksums are correct. Engine B is killed: the
trainer reports it, and engine A gets every version. Engine C joins and gets the next one.

Prints:
version 1 to engine A, engine B
version 2 to engine A; lost: engine B
version 3 to engine A, engine C
engine C: version 3, all weights equal: True
"""

import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection

import numpy as np

from pynccl.weights import WeightReceiver, WeightSender

SHAPES = {"embedding": (1000, 64), "layer.0.weight": (256, 256), "layer.0.bias": (256,)}


def serve(name: str, address: str, out: Connection) -> None:
    """An engine: commits versions until the trainer closes the session."""
    with WeightReceiver(address, library="numpy", name=name, timeout=30) as receiver:
        for report in receiver:
            equal = all((tensor == report.version).all() for tensor in receiver.tensors.values())
            out.send((name, os.getpid(), f"version {report.version}, all weights equal: {equal}"))


def main() -> None:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()

    def start(name: str, address: str) -> None:
        spawn.Process(target=serve, args=(name, address, theirs), daemon=True).start()

    weights = {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    with WeightSender("127.0.0.1:29611", receivers=2, timeout=30) as sender:
        start("engine A", sender.address)
        start("engine B", sender.address)
        for version in (1, 2, 3):
            for weight in weights.values():
                weight[...] = version  # a step of the optimizer
            report = sender.send(weights)
            text = f"version {version} to {', '.join(sorted(report.receivers))}"
            print(text + (f"; lost: {', '.join(report.lost)}" if report.lost else ""), flush=True)
            if version == 1:
                pids = {name: pid for name, pid, _ in (ours.recv(), ours.recv())}
                os.kill(pids["engine B"], signal.SIGKILL)
            if version == 2:
                start("engine C", sender.address)
                while not sender.waiting():
                    time.sleep(0.01)
    for process in multiprocessing.active_children():
        process.join(10)
    while ours.poll():
        name, _, text = ours.recv()
        if name == "engine C":
            print(f"{name}: {text}")


if __name__ == "__main__":
    main()

"""A trainer and two engines as Ray actors.

Run: python examples/weights/ray_actors.py

Needs Ray (pip install ray) and torch. The trainer listens; the engines join by the address and the
key that it returns, and receive a version while the trainer sends it.

Prints:
engine 0: version 1, norm 8.0
engine 1: version 1, norm 8.0
engine 0: version 2, norm 16.0
engine 1: version 2, norm 16.0
"""

import logging
import secrets

import ray
import torch

from pynccl.weights import WeightReceiver, WeightSender

ENGINES = 2


@ray.remote(num_cpus=0)
class Trainer:
    def __init__(self) -> None:
        self.weight = torch.zeros(8, 8)
        host = ray.util.get_node_ip_address()
        self.key = secrets.token_hex(32)
        self.sender = WeightSender(f"{host}:0", receivers=ENGINES, timeout=60, key=self.key)

    def session(self) -> tuple[str, str]:
        return self.sender.address, self.key

    def step(self) -> None:
        """A step of the optimizer."""
        self.weight += 1

    def send(self) -> None:
        self.sender.send({"weight": self.weight})


@ray.remote(num_cpus=0)
class Engine:
    def __init__(self, number: int, address: str, key: str) -> None:
        self.number = number
        self.weights = {"weight": torch.empty(8, 8)}
        self.receiver = WeightReceiver(
            address, self.weights, name=f"engine {number}", timeout=60, key=key
        )

    def receive(self) -> str:
        report = self.receiver.receive()
        norm = self.weights["weight"].norm().item()
        return f"engine {self.number}: version {report.version}, norm {norm}"


def main() -> None:
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    trainer = Trainer.remote()
    address, key = ray.get(trainer.session.remote())
    engines = [Engine.remote(number, address, key) for number in range(ENGINES)]
    for _ in range(2):
        ray.get(trainer.step.remote())
        received = [engine.receive.remote() for engine in engines]
        ray.get(trainer.send.remote())
        for text in ray.get(received):
            print(text)
    ray.shutdown()


if __name__ == "__main__":
    main()

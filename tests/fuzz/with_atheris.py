"""Fuzzes pynccl's readers and calls in Python with Atheris, guided by coverage.

    python -m tests.fuzz.with_atheris TARGET SECONDS CORPUS_FOLDER

A target is one of tests.fuzz.readers, or "arguments": the calls of tests.stress.arguments, whose
random numbers are the bytes of the fuzzer. The dependency group "fuzz" installs Atheris.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Any

__all__ = ["main"]

_LONGEST_S = 20  # seconds per input
_MEMORY_MIB = 4096


class _Bytes(random.Random):
    """A generator whose random numbers are the bytes of an input, followed by zeros."""

    def __init__(self, data: bytes) -> None:
        super().__init__(0)
        self._data, self._place = data, 0

    def getrandbits(self, k: int, /) -> int:
        size = (k + 7) // 8
        part = self._data[self._place : self._place + size]
        self._place += size
        return int.from_bytes(part, "little") & ((1 << k) - 1)

    def random(self) -> float:
        return self.getrandbits(16) / (1 << 16)

    def _randbelow(self, n: int) -> int:
        # Without rejection sampling, which would not terminate on zeros.
        return self.getrandbits(max(n.bit_length(), 8)) % n


def _arguments() -> Any:  # noqa: ANN401 - a target
    from tests.stress.arguments import WRONG, Fuzzer

    fuzzer = Fuzzer()

    def target(data: bytes) -> None:
        try:
            fuzzer.call(_Bytes(data))
        except SystemError:
            raise
        except Exception as error:
            if any(text in str(error) for text in WRONG):
                raise

    return target


def main() -> None:
    """Run libFuzzer, which exits with status 0 if it has found nothing."""
    import atheris

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("target")
    parser.add_argument("seconds", type=int)
    parser.add_argument("corpus", type=Path, help="the folder to which new inputs are added")
    options = parser.parse_args()
    with atheris.instrument_imports(include=["pynccl"]):
        from tests.fuzz import corpus, readers

        arguments = options.target == "arguments"
        target = _arguments() if arguments else readers.TARGETS[options.target]

    def mutated(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        if arguments or rng.random() < 0.2:
            return bytes(atheris.Mutate(data, most))
        changed = readers.mutate(data, rng)
        return changed if len(changed) <= most else data[:most]

    options.corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate([] if arguments else corpus.seeds(options.target)):
        (options.corpus / f"seed-{number}").write_bytes(data)
    flags = [
        f"-max_total_time={options.seconds}",
        f"-timeout={_LONGEST_S}",
        f"-rss_limit_mb={_MEMORY_MIB}",
        "-max_len=16384",
        "-print_final_stats=1",
        f"-artifact_prefix={options.corpus.parent}/{options.target}-",
    ]
    atheris.Setup([sys.argv[0], *flags, str(options.corpus)], target, custom_mutator=mutated)
    atheris.Fuzz()


if __name__ == "__main__":
    main()

"""``pynccl doctor --topology``: the links in a topology file of NCCL, and unusual ones.

NCCL writes the file with NCCL_TOPO_DUMP_FILE: elements cpu, which contain pci, which contain pci,
gpu or nic. A gpu contains nvlink and c2c, a nic contains net. A PCIe switch is one pci element.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from xml.parsers import expat

from pynccl.tools.doctor.finding import Finding
from pynccl.tools.text import table

__all__ = ["Device", "Topology", "TopologyError", "load", "parse"]

_LARGEST = 16 << 20  # bytes; NCCL's own files have at most some hundred KB
_DEEPEST = 64  # elements
_MOST_DEVICES = 1024
_MOST_TARGETS = 64  # of a GPU's NVLinks
_LONGEST_VALUE = 255  # characters
_MOST = 1 << 31
_NVSWITCH = "NVSwitch"
_TARGETS = {"0x068000": _NVSWITCH, "0x068001": "CPU"}  # by the PCI class of an NVLink's target
_T = TypeVar("_T", int, tuple[float, str])


class TopologyError(ValueError):
    """The file is not a topology of NCCL."""


@dataclass
class Device:
    """A GPU or a network port.

    Attributes:
        kind: "GPU" or "NIC".
        name: "GPU 0", or the name of the port.
        cpu: the NUMA node; "host/node" from the second host on.
        bus: its PCI address; "" for a port that is not a PCI device.
        path: the PCI addresses from the device's parent to the CPU.
        gts: PCIe speed in GT/s of the slowest link to the CPU; 0 if unknown.
        width: lanes of that link.
        nvlinks: the number of NVLinks to each target: a PCI address, "NVSwitch" or "CPU".
        c2c: the number of C2C links to the CPU.
        gbits: speed of a port in Gbit/s.
    """

    kind: str
    name: str
    cpu: str
    bus: str = ""
    path: list[str] = field(default_factory=list)
    gts: float = 0
    width: int = 0
    nvlinks: dict[str, int] = field(default_factory=dict)
    c2c: int = 0
    gbits: float = 0

    @property
    def pcie(self) -> str:
        """The slowest PCIe link, as text."""
        return f"{self.gts:g} GT/s x{self.width}" if self.gts else "-"

    @property
    def other(self) -> str:
        """The links other than PCIe, as text."""
        links = [f"{count} to {target}" for target, count in self.nvlinks.items()]
        links += [f"{self.c2c} C2C"] if self.c2c else []
        links += [f"{self.gbits:g} Gbit/s"] if self.gbits else []
        return ", ".join(links) or "-"


@dataclass(frozen=True)
class Topology:
    """The GPUs and network ports of a file, GPUs first."""

    devices: list[Device]

    def links(self) -> list[list[str]]:
        """Return the link of each device with each other one, by NCCL's names of paths."""
        return [[_link(one, other) for other in self.devices] for one in self.devices]

    def text(self) -> str:
        """Format the devices and their links as tables."""
        rows = [[one.name, one.bus or "-", one.cpu, one.pcie, one.other] for one in self.devices]
        names = [one.name for one in self.devices]
        matrix = [[name, *row] for name, row in zip(names, self.links(), strict=True)]
        return "\n".join(
            [
                table(["device", "bus", "CPU", "PCIe", "NVLink or network"], rows, left=range(5)),
                "",
                table(["", *names], matrix, left=range(len(names) + 1)),
                "",
                "NVn: n NVLinks; NVS: NVSwitch; PIX: one PCIe switch; PXB: several; PHB: the CPU;",
                "SYS: the link between CPUs",
            ]
        )

    def findings(self) -> Iterator[Finding]:
        """Yield the unusual links."""
        gpus = [one for one in self.devices if one.kind == "GPU"]
        ports = [one for one in self.devices if one.kind == "NIC"]
        usual = _most_common(sum(one.nvlinks.values()) for one in gpus)
        for one in gpus:
            if usual and (count := sum(one.nvlinks.values())) < usual:
                yield _note(
                    f"{one.name} has {count or 'no'} NVLinks, most GPUs have {usual}",
                    "check nvidia-smi nvlink --status",
                )
        nearby = {one.cpu for one in ports}
        for cpu in sorted({one.cpu for one in gpus} - nearby) if ports else ():
            names = ", ".join(one.name for one in gpus if one.cpu == cpu)
            yield _note(f"{names}: no NIC at CPU {cpu}, so all network traffic crosses CPUs")
        for one in ports:
            if one.cpu not in {gpu.cpu for gpu in gpus}:
                yield _note(f"{one.name} is at CPU {one.cpu}, which has no GPU")
        speeds = {one.gbits for one in ports}
        for group in (gpus, *([p for p in ports if p.gbits == speed] for speed in speeds)):
            fastest = _most_common((one.gts * one.width, one.pcie) for one in group if one.gts)
            for one in group:
                if fastest and one.gts and one.gts * one.width < fastest[0]:
                    yield _note(
                        f"{one.name} is connected by PCIe {one.pcie}, most others by {fastest[1]}",
                        "check the slot and, under load, lspci -vv: idle devices may slow down",
                    )


def _note(text: str, advice: str = "") -> Finding:
    return Finding("unusual", "note", text, advice)


def _most_common(values: Iterable[_T]) -> _T | None:
    """The most common value, the largest of several; None without values."""
    counts = Counter(values)
    return max(counts, key=lambda value: (counts[value], value), default=None)


def _link(one: Device, other: Device) -> str:
    if one is other:
        return "-"
    if other.kind == "GPU" and (count := one.nvlinks.get(other.bus)):
        return f"NV{count}"
    if _NVSWITCH in one.nvlinks and _NVSWITCH in other.nvlinks:
        return "NVS"
    if one.cpu != other.cpu:
        return "SYS"
    if one.bus and one.path[:1] == other.path[:1] and (one.path or one.bus == other.bus):
        return "PIX"
    return "PXB" if set(one.path) & set(other.path) else "PHB"


def load(path: str) -> Topology:
    """Read a topology file.

    Raises:
        OSError: the file cannot be read.
        TopologyError: it is not a topology of NCCL.
    """
    with Path(path).open("rb") as file:
        data = file.read(_LARGEST + 1)
    if len(data) > _LARGEST:
        raise TopologyError(f"{path}: larger than {_LARGEST >> 20} MiB")
    try:
        return parse(data)
    except TopologyError as error:
        raise TopologyError(f"{path}: {error}") from None


def parse(data: bytes) -> Topology:
    """Parse the contents of a topology file.

    Raises:
        TopologyError: it is not a topology of NCCL.
    """
    reader = _Reader()
    try:
        reader.parser.Parse(data, True)
    except expat.ExpatError as error:
        raise TopologyError(f"not XML: {error}") from None
    return Topology(sorted(reader.devices, key=lambda one: one.kind))


class _Reader:
    """Collects the devices while expat parses. Without a DTD there are no entities to expand."""

    def __init__(self) -> None:
        self.parser = expat.ParserCreate("utf-8")
        self.parser.StartDoctypeDeclHandler = self._refuse
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.devices: list[Device] = []
        self._open: list[tuple[str, dict[str, str]]] = []
        self._hosts: dict[str, int] = {}

    def _refuse(self, *_: object) -> None:
        raise TopologyError("it has a DOCTYPE, which NCCL does not write")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if not self._open and (tag, attributes.get("version")) != ("system", "1"):
            raise TopologyError(f"begins with {tag[:40]!r}, not <system version='1'>")
        if len(self._open) == _DEEPEST:
            raise TopologyError(f"more than {_DEEPEST} nested elements")
        if not all(value.isprintable() for value in attributes.values()):
            raise TopologyError(f"<{tag[:40]}> has an attribute that is not printable")
        if any(len(value) > _LONGEST_VALUE for value in attributes.values()):
            text = f"has a value of more than {_LONGEST_VALUE} characters"
            raise TopologyError(f"<{tag[:40]}> {text}")
        self._open.append((tag, attributes))
        if tag == "gpu":
            self._add("GPU", f"GPU {_number(tag, attributes, 'dev')}")
        elif tag == "net":
            self._add("NIC", attributes.get("name") or f"net {attributes.get('dev', '?')}")
            self.devices[-1].gbits = max(0, _number(tag, attributes, "speed")) / 1000
        elif tag in ("nvlink", "c2c") and self._open[-2][0] == "gpu":
            count = _number(tag, attributes, "count")
            if tag == "c2c":
                self.devices[-1].c2c += count
            else:
                target = attributes.get("tclass", "")[:8]
                name = _TARGETS.get(target, attributes.get("target", "?"))
                links = self.devices[-1].nvlinks
                links[name] = links.get(name, 0) + count
                if len(links) > _MOST_TARGETS:
                    raise TopologyError(f"a GPU has NVLinks to more than {_MOST_TARGETS} targets")

    def _end(self, _: str) -> None:
        self._open.pop()

    def _add(self, kind: str, name: str) -> None:
        if len(self.devices) == _MOST_DEVICES:
            raise TopologyError(f"more than {_MOST_DEVICES} devices")
        cpus = [attributes for tag, attributes in self._open if tag == "cpu"]
        if not cpus:
            raise TopologyError(f"{name} is not at a CPU")
        host = self._hosts.setdefault(cpus[0].get("host_hash", ""), len(self._hosts))
        cpu = cpus[0].get("numaid", "?")
        links = [attributes for tag, attributes in self._open if tag == "pci"]
        buses = [link.get("busid", "?") for link in reversed(links)]
        if host:
            name, cpu = f"{name} (host {host})", f"{host}/{cpu}"
        one = Device(kind, name, cpu, bus=buses[0] if buses else "", path=buses[1:])
        speeds = [_pcie(link) for link in links]
        known = [speed for speed in speeds if speed[0]]
        if known:
            one.gts, one.width = min(known, key=lambda speed: speed[0] * speed[1])
        self.devices.append(one)


def _number(tag: str, attributes: dict[str, str], name: str) -> int:
    text = attributes.get(name) or "0"
    try:
        if -_MOST <= (number := int(text, 0)) < _MOST:
            return number
    except ValueError:
        pass
    raise TopologyError(f"<{tag}> has {name}={text[:40]!r}")


def _pcie(attributes: dict[str, str]) -> tuple[float, int]:
    """GT/s and lanes of a pci element. As in NCCL, 0 lanes or no number of lanes means 16."""
    text = attributes.get("link_speed", "")
    found = re.match(r"([0-9.]{1,8}) GT/s", text)
    try:
        speed = float(found[1]) if found else 0
    except ValueError:
        raise TopologyError(f"<pci> has link_speed={text[:40]!r}") from None
    return speed, _number("pci", attributes, "link_width") or 16

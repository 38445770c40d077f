"""Proves the tables and findings for a topology file of NCCL, and the errors for other files."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from pynccl import cli
from pynccl.tools.doctor.topology import TopologyError, parse

_SWITCH = ("fffffff:ffff:ff", "0x068000")


def _gpu(
    number: int,
    bus: str,
    *nvlinks: tuple[int, str, str],
    pcie: str = "32.0 GT/s PCIe",
    more: str = "",
) -> str:
    links = "".join(
        f'<nvlink target="{target}" count="{count}" tclass="{tclass}"/>'
        for count, target, tclass in nvlinks
    )
    return (
        f'<pci busid="{bus}" class="0x030200" vendor="0x10de" device="0x2330" '
        f'link_speed="{pcie}" link_width="16"><gpu dev="{number}" sm="90" rank="{number}" gdr="1">'
        f"{links}{more}</gpu></pci>"
    )


def _nic(name: str, bus: str, *, pcie: str = "32.0 GT/s PCIe", width: int | str = 16) -> str:
    return (
        f'<pci busid="{bus}" class="0x020700" link_speed="{pcie}" link_width="{width}"><nic>'
        f'<net name="{name}" dev="0" speed="400000" port="1" gdr="1"/></nic></pci>'
    )


def _bridge(bus: str, *inner: str, pcie: str = "32.0 GT/s PCIe") -> str:
    return (
        f'<pci busid="{bus}" class="0x060400" link_speed="{pcie}" link_width="16">'
        f"{''.join(inner)}</pci>"
    )


def _cpu(numa: int, *inner: str, host: str = "0x1f") -> str:
    return f'<cpu host_hash="{host}" numaid="{numa}" arch="x86_64">{"".join(inner)}</cpu>'


def _system(*cpus: str) -> bytes:
    return f'<system version="1">{"".join(cpus)}</system>'.encode()


def _findings(data: bytes) -> list[str]:
    return [one.text for one in parse(data).findings()]


_USUAL = _system(
    _cpu(
        0,
        _bridge("0:0e", _gpu(0, "0:0f", (18, *_SWITCH)), _nic("mlx5_0", "0:10")),
        _bridge("0:2a", _bridge("0:2b", _gpu(1, "0:2c", (18, *_SWITCH))), _nic("mlx5_1", "0:2d")),
    ),
    _cpu(1, _gpu(2, "0:9f", (18, *_SWITCH)), _nic("mlx5_2", "0:a0")),
)


def test_the_tables() -> None:
    found = parse(_USUAL)
    assert found.text().splitlines()[:12] == [
        "device  bus   CPU  PCIe         NVLink or network",
        "GPU 0   0:0f  0    32 GT/s x16  18 to NVSwitch",
        "GPU 1   0:2c  0    32 GT/s x16  18 to NVSwitch",
        "GPU 2   0:9f  1    32 GT/s x16  18 to NVSwitch",
        "mlx5_0  0:10  0    32 GT/s x16  400 Gbit/s",
        "mlx5_1  0:2d  0    32 GT/s x16  400 Gbit/s",
        "mlx5_2  0:a0  1    32 GT/s x16  400 Gbit/s",
        "",
        "        GPU 0  GPU 1  GPU 2  mlx5_0  mlx5_1  mlx5_2",
        "GPU 0   -      NVS    NVS    PIX     PHB     SYS",
        "GPU 1   NVS    -      NVS    PHB     PXB     SYS",
        "GPU 2   NVS    NVS    -      SYS     SYS     PHB",
    ]
    assert list(found.findings()) == []


def test_links_between_gpus_to_the_cpu_and_to_other_hosts() -> None:
    pair = [
        _gpu(0, "0:01", (4, "0:02", "0x030200"), (2, "?", "0x068001")),
        _gpu(1, "0:02", (4, "0:01", "0x030200"), more='<c2c bw="40000" count="10"/>'),
    ]
    found = parse(_system(_cpu(0, *pair), _cpu(0, _gpu(0, "0:01"), host="0x2e")))
    assert [one.other for one in found.devices] == ["4 to 0:02, 2 to CPU", "4 to 0:01, 10 C2C", "-"]
    assert found.links()[0] == ["-", "NV4", "SYS"]
    assert (found.devices[2].name, found.devices[2].cpu) == ("GPU 0 (host 1)", "1/0")


def test_ports_of_one_adapter_and_without_pci() -> None:
    two = '<nic><net name="a" dev="0"/><net name="b" dev="1" speed="-1"/></nic>'
    found = parse(_system(_cpu(0, f'<pci busid="0:01">{two}</pci>', '<nic><net dev="2"/></nic>')))
    assert [one.name for one in found.devices] == ["a", "b", "net 2"]
    assert found.links()[0] == ["-", "PIX", "PHB"]
    assert (found.devices[1].pcie, found.devices[2].bus, found.devices[1].other) == ("-", "", "-")


@pytest.mark.parametrize(
    ("cpus", "text"),
    [
        (
            [_cpu(0, _gpu(0, "1", (18, *_SWITCH)), _gpu(1, "2"), _gpu(2, "3", (18, *_SWITCH)))],
            "GPU 1 has no NVLinks, most GPUs have 18",
        ),
        (
            [_cpu(0, *(_gpu(i, f"{i}", (16 + 2 * (i > 0), *_SWITCH)) for i in range(3)))],
            "GPU 0 has 16 NVLinks, most GPUs have 18",
        ),
        (
            [_cpu(0, _gpu(0, "1"), _nic("a", "2")), _cpu(1, _gpu(1, "3"), _gpu(2, "4"))],
            "GPU 1, GPU 2: no NIC at CPU 1, so all network traffic crosses CPUs",
        ),
        (
            [_cpu(0, _gpu(0, "1"), _nic("a", "2")), _cpu(1, _nic("b", "3"))],
            "b is at CPU 1, which has no GPU",
        ),
        (
            [_cpu(0, _gpu(0, "1"), _gpu(1, "2"), _gpu(2, "3", pcie="16.0 GT/s PCIe"))],
            "GPU 2 is connected by PCIe 16 GT/s x16, most others by 32 GT/s x16",
        ),
        (
            [_cpu(0, _gpu(0, "1"), _nic("a", "2"), _nic("b", "3", width=8), _nic("c", "4"))],
            "b is connected by PCIe 32 GT/s x8, most others by 32 GT/s x16",
        ),
        # The slowest link to the CPU counts; unknown links do not.
        (
            [
                _cpu(
                    0,
                    *(_gpu(i, f"{i}") for i in range(3)),
                    _bridge("9", _gpu(3, "a"), pcie="8.0 GT/s PCIe"),
                    _gpu(4, "b", pcie=""),
                )
            ],
            "GPU 3 is connected by PCIe 8 GT/s x16, most others by 32 GT/s x16",
        ),
    ],
)
def test_unusual_links(cpus: list[str], text: str) -> None:
    assert _findings(_system(*cpus)) == [text]


_LAUGHS = (
    b'<!DOCTYPE system [<!ENTITY a "ha"><!ENTITY b "&a;&a;">]><system version="1">&b;</system>'
)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not XML: no element found"),
        (b"\0\xff", "not XML"),
        (_USUAL[:-9], "not XML: no element found"),
        (_LAUGHS, "it has a DOCTYPE"),
        (b'<graphs version="1"/>', "begins with 'graphs'"),
        (b'<system version="2"/>', "begins with 'system'"),
        (b'<system version="1">' + b"<pci>" * 1000, "more than 64 nested elements"),
        (b'<system version="1"><gpu dev="0"/></system>', "GPU 0 is not at a CPU"),
        (_system(_cpu(0, '<gpu dev="zero"/>')), "<gpu> has dev='zero'"),
        (_system(_cpu(0, _nic("a", "1", width="wide"))), "<pci> has link_width='wide'"),
        (_system(_cpu(0, _nic("a", "1", pcie="1.2.3 GT/s"))), "<pci> has link_speed='1.2.3 GT/s'"),
        (_system(_cpu(0, _nic("a&#10;b", "1"))), "attribute that is not printable"),
        (_system(_cpu(0, _nic("a" * 256, "1"))), "<net> has a value of more than 255 characters"),
        (_system(_cpu(0, _nic("a", "1", width="9" * 200))), "<pci> has link_width='9999"),
        (_system(_cpu(0, '<net speed="1' + "0" * 250 + '"/>')), "<net> has speed='1000"),
        (_system(_cpu(0, '<gpu dev="0"/>' * 1025)), "more than 1024 devices"),
        (
            _system(_cpu(0, _gpu(0, "1", *((1, f"{i}", "0x030200") for i in range(65))))),
            "a GPU has NVLinks to more than 64 targets",
        ),
    ],
)
def test_other_files(data: bytes, text: str) -> None:
    with pytest.raises(TopologyError) as raised:
        parse(data)
    assert text in str(raised.value)


def test_the_largest_file_is_printed_in_time() -> None:
    inner = _gpu(0, "1", *((1, f"{i}{'x' * 250}", "0x030200") for i in range(64)))
    began = time.monotonic()
    found = parse(_system(_cpu(0, _bridge("0" * 255, inner) * 1024)))
    assert len(found.text()) < 1 << 26
    list(found.findings())
    assert time.monotonic() - began < 20


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "topology.xml"
    path.write_bytes(_system(_cpu(0, _gpu(0, "1", (18, *_SWITCH)), _gpu(1, "2"))))
    monkeypatch.setenv("NCCL_TOPO_DUMP_FILE", str(path))
    assert cli.main(["doctor", "--topology"]) == 0
    printed = capsys.readouterr().out
    assert "GPU 0   1    0    32 GT/s x16  18 to NVSwitch" in printed
    assert "unusual: GPU 1 has no NVLinks, most GPUs have 18\n  -> check nvidia-smi" in printed
    assert cli.main(["doctor", "--json", "--topology", str(path)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["links"] == [["-", "PHB"], ["PHB", "-"]]
    assert [one["name"] for one in found["devices"]] == ["GPU 0", "GPU 1"]
    assert len(found["findings"]) == 1
    path.write_bytes(_USUAL)
    assert cli.main(["doctor", "--topology", str(path)]) == 0
    assert capsys.readouterr().out.endswith("nothing unusual\n")


@pytest.mark.parametrize("contents", ["large", "missing", "unset"])
def test_the_command_without_a_usable_file(
    contents: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "topology.xml"
    if contents == "large":
        path.touch()
        with path.open("r+b") as file:
            file.truncate(1 << 30)
    monkeypatch.delenv("NCCL_TOPO_DUMP_FILE", raising=False)
    words = [] if contents == "unset" else [str(path)]
    assert cli.main(["doctor", "--topology", *words]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    texts = {"large": "larger than 16 MiB", "missing": "No such file", "unset": "is not set"}
    assert texts[contents] in error

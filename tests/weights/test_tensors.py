"""Tensors that cannot be sent or received are rejected by name before any access."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pynccl.weights import Shard, Spec, WeightReceiver, WeightSender, WeightsError
from pynccl.weights.dtypes import converts
from pynccl.weights.overlap import Extent, overlap
from tests.weights.sessions import run

NOWHERE = "127.0.0.1:1"
Views = Callable[[torch.Tensor], dict[str, Any]]


@pytest.mark.parametrize(
    ("views", "text"),
    [
        (lambda t: {"a": t[:6], "b": t[5:]}, "a and b overlap in memory"),
        (lambda t: {"a": t.view(2, 5), "b": t[3:4]}, "a and b overlap"),
        (lambda t: {"a": t.view(2, 5), "b": t}, "a and b overlap"),
        (lambda t: {"a": t, "b": t.view(torch.int32)}, "a and b overlap"),
        (lambda t: {"a": t[::2], "b": t[1::3]}, "a and b overlap"),
        (
            lambda t: {"a": Shard(t, (20,), (0,)), "b": Shard(t, (20,), (10,))},
            "a and b overlap",
        ),
        (lambda t: {"a": t[:1].expand(4)}, "a has several elements at the same address"),
        (lambda t: {"a": t.as_strided((4, 3), (2, 1))}, "a has several elements"),
    ],
)
def test_tensors_that_overlap_are_rejected(views: Views, text: str) -> None:
    with pytest.raises(ValueError, match=f"into: {text}"):
        WeightReceiver(NOWHERE, views(torch.zeros(10)), timeout=0.1)


@pytest.mark.parametrize(
    "views",
    [
        lambda t: {"q": t[:6], "k": t[6:]},
        lambda t: {"q": t.view(2, 5)[:, :3], "k": t.view(2, 5)[:, 3:]},
        lambda t: {"q": t[::2], "k": t[1::2]},
        lambda t: {"q": t[4:4], "k": t},
    ],
)
def test_fused_tensors_are_received(views: Views) -> None:
    into = views(torch.zeros(10))
    tensors = {name: torch.full_like(t, i + 1) for i, (name, t) in enumerate(into.items())}

    def receive(receiver: WeightReceiver) -> bool:
        receiver.receive()
        return all(torch.equal(into[name], tensors[name]) for name in into)

    assert run([lambda sender: sender.send(tensors).version], [receive], [into]) == [1, True]


def test_overlap_of_any_addresses() -> None:
    """NumPy compares the layouts without access to the memory, which may be that of a GPU."""
    low, high = (
        Extent(address, 2, (1000, 3000), (12000, 2)) for address in (1 << 46, (1 << 46) + 6000)
    )
    assert not overlap(low, high)
    assert overlap(low, high._replace(address=high.address - 2))


@pytest.mark.parametrize("commit", ["copy", "in_place"])
@pytest.mark.parametrize("size", [1000, 300_000])  # one of a bucket, and one of several
def test_tied_tensors(commit: Any, size: int) -> None:  # noqa: ANN401
    """Equal values are received. Different values are the receiver's error, with the names."""
    weight = torch.zeros(size)
    into = {"embed": weight, "between": torch.zeros(3), "head": weight}

    def model(embed: float, head: float) -> dict[str, Any]:
        return {
            "embed": torch.full((size,), float(embed)),
            "between": torch.ones(3),
            "head": torch.full((size,), float(head)),
        }

    def send(sender: WeightSender) -> None:
        sender.send(model(1, 1))
        sender.send(model(2, 2))
        with pytest.raises(WeightsError, match="embed and head are the same tensor"):
            sender.send(model(2, 3))

    def receive(receiver: WeightReceiver) -> None:
        for version in (1, 2):
            receiver.receive()
            assert bool((weight == version).all())
        with pytest.raises(ValueError, match="into: embed and head are the same tensor"):
            receiver.receive()
        if commit == "copy":
            assert receiver.version == 2
            assert bool((weight == 2).all())
        else:
            assert receiver.version is None

    results = run(
        [send],
        [receive],
        [into],
        receiver_options={"commit": commit},
        bucket_bytes=1 << 16,
    )
    assert results == [None, None], results


def test_conversions_of_the_page() -> None:
    for source, target in (
        ("float32", "bfloat16"),
        ("float32", "float8_e4m3fn"),
        ("bfloat16", "float32"),
        ("float64", "float16"),
        ("complex128", "complex64"),
        ("int8", "int64"),
        ("uint8", "int16"),
        ("bool", "float32"),
        ("int32", "float64"),
        ("int8", "bfloat16"),
        ("float8_e8m0fnu", "float32"),
        ("float32", "complex64"),
    ):
        assert converts(source, target), (source, target)
    for source, target in (
        ("complex64", "float32"),
        ("int64", "int8"),
        ("int64", "float32"),
        ("float32", "int32"),
        ("int8", "uint8"),
        ("uint8", "int8"),
        ("int32", "float32"),
        ("float32", "float8_e8m0fnu"),
        ("float32", "bool"),
        ("int16", "bool"),
        ("float4_e2m1fn_x2", "float32"),
        ("float32", "float4_e2m1fn_x2"),
    ):
        assert not converts(source, target), (source, target)


def freed() -> torch.Tensor:
    """A tensor whose storage was freed, as FSDP does."""
    tensor = torch.ones(100_000)
    tensor.untyped_storage().resize_(0)
    return tensor


def short() -> torch.Tensor:
    """A view that extends beyond its storage."""
    tensor = torch.ones(100, 100)
    view = tensor[50:]
    tensor.untyped_storage().resize_(20_000)
    return view


WITHOUT = [
    (freed, "w: the tensor needs 400000 bytes of its storage, which has 0 now"),
    (short, "w: the tensor needs 40000 bytes of its storage, which has 20000 now"),
    (lambda: torch.ones(3, device="meta"), "w: the tensor is on the meta device"),
    (lambda: torch.ones(3).to_sparse(), "w: expected a dense tensor"),
]


@pytest.mark.parametrize(("make", "text"), WITHOUT)
@pytest.mark.parametrize("library", ["torch", "numpy"])
def test_tensors_without_memory(make: Callable[[], Any], text: str, library: Any) -> None:  # noqa: ANN401
    with pytest.raises(ValueError, match=text):
        WeightReceiver(NOWHERE, {"w": make()}, library=library, timeout=0.1)
    with (
        WeightSender("127.0.0.1:0", library=library, timeout=0.1) as sender,
        pytest.raises(ValueError, match=text),
    ):
        sender.send({"w": make()})


def test_sources_that_lose_their_memory() -> None:
    """Between two versions, and those that a function produces."""
    model = {"v": torch.ones(5), "w": torch.ones(100_000)}

    def send(sender: WeightSender) -> None:
        sender.send(model)
        model["w"].untyped_storage().resize_(0)
        with pytest.raises(ValueError, match="w: the tensor needs 400000 bytes"):
            sender.send(model)
        specs = {"w": Spec("float32", (100_000,))}
        with pytest.raises(ValueError, match="w: the tensor needs 400000 bytes"):
            sender.send(lambda: [("w", freed())], metadata=specs)
        sender.send({"v": torch.full((5,), 2.0)})

    def receive(receiver: WeightReceiver) -> None:
        receiver.receive()
        with pytest.raises(WeightsError, match="w: the tensor needs"):
            receiver.receive()
        receiver.receive()
        assert bool((receiver.tensors["v"] == 2).all())

    assert run([send], [receive], [None]) == [None, None]


def resize(into: dict[str, torch.Tensor]) -> None:
    into["w"].untyped_storage().resize_(0)


def reshape(into: dict[str, torch.Tensor]) -> None:
    into["w"].data = torch.zeros(2, 100_000)  # copy_() would broadcast


@pytest.mark.parametrize("change", [resize, reshape])
@pytest.mark.parametrize("when", ["before", "commit"])
@pytest.mark.parametrize("commit", ["copy", "in_place"])
def test_targets_that_lose_their_memory(change: Any, when: str, commit: Any) -> None:  # noqa: ANN401
    """Nothing is written if it happens before a version, or between its transfer and its commit."""
    if (when, commit) == ("commit", "in_place"):
        pytest.skip("a commit in place writes nothing")
    into = {"v": torch.zeros(5), "w": torch.zeros(1, 100_000)}

    def model(value: float) -> dict[str, Any]:
        return {name: torch.full_like(tensor, value) for name, tensor in source.items()}

    source = {"v": torch.zeros(5), "w": torch.zeros(1, 100_000)}

    def send(sender: WeightSender) -> Any:  # noqa: ANN401
        sender.send(model(1))
        try:
            return sender.send(model(2)).receivers
        except WeightsError as error:
            return "w" in str(error)

    def receive(receiver: WeightReceiver) -> None:
        receiver.receive()
        target = receiver._follower.target
        assert target is not None
        if when == "before":
            change(into)
        else:
            function = target.commit

            def late(version: int) -> None:
                change(into)
                function(version)

            target.commit = late  # type: ignore[method-assign]
        with pytest.raises(ValueError, match="w"):
            receiver.receive()
        assert bool((into["v"] == 1).all())
        assert receiver.version == 1  # what is left of it; nothing of another was written

    sent, received = run([send], [receive], [into], receiver_options={"commit": commit})
    assert received is None, received
    assert sent is True, sent


def halve(tensor: torch.Tensor, behind: torch.Tensor) -> None:
    """Replace a tensor by a smaller one that lies before other data."""
    halves = behind.view(torch.float16)[: tensor.numel()]
    tensor.data = halves.view(tensor.shape)


def transpose(tensor: torch.Tensor, _: torch.Tensor) -> None:
    tensor.data = tensor.clone().t()


@pytest.mark.parametrize("change", [halve, transpose])
@pytest.mark.parametrize("commit", ["copy", "in_place"])
@pytest.mark.parametrize("side", [8, 300])  # packed in a bucket, and received directly
def test_targets_that_change(change: Any, commit: Any, side: int) -> None:  # noqa: ANN401
    """Their dtype or strides, between two versions: nothing is written as they were before."""
    source = {"w": (torch.arange(side * side, dtype=torch.float32) % 50).view(side, side)}
    into = {"w": torch.zeros(side, side)}
    behind = torch.zeros(side * side)

    def send(sender: WeightSender) -> int:
        sender.send(source)
        sender.send(source)
        return sender._session._epoch

    def receive(receiver: WeightReceiver) -> None:
        receiver.receive()
        change(into["w"], behind)
        receiver.receive()

    sent, _ = run([send], [receive], [into], receiver_options={"commit": commit})
    assert sent == 2  # attempts: no checksum differed
    assert torch.equal(into["w"].float(), source["w"])
    assert not behind.view(torch.float16)[side * side :].any()


@pytest.mark.parametrize("side", [8, 300])
def test_sources_that_are_transposed(side: int) -> None:
    source = {"w": torch.arange(side * side, dtype=torch.float32).view(side, side)}
    into = {"w": torch.zeros(side, side)}

    def send(sender: WeightSender) -> None:
        sender.send(source)
        transpose(source["w"], into["w"])
        sender.send(source)

    def receive(receiver: WeightReceiver) -> None:
        receiver.receive()
        receiver.receive()

    assert run([send], [receive], [into]) == [None, None]
    assert torch.equal(into["w"], source["w"])


@pytest.mark.parametrize("commit", ["copy", "in_place"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_inference_tensors(commit: Any, dtype: Any) -> None:  # noqa: ANN401
    """Including tensors of another dtype, created in the engine's inference mode."""
    with torch.inference_mode():
        into = {name: torch.zeros(40, dtype=dtype) for name in ("a", "b")}
    into["c"] = torch.nn.Parameter(torch.zeros(40, dtype=dtype))

    def send(sender: WeightSender) -> list[int]:
        return [
            len(sender.send({name: torch.full((40,), v) for name in into}).receivers)
            for v in (1.0, 2.0)
        ]

    def receive(receiver: WeightReceiver) -> int | None:
        with torch.inference_mode():
            receiver.receive()
        receiver.receive()
        assert all(bool((tensor == 2).all()) for tensor in into.values())
        return receiver.version

    assert run([send], [receive], [into], receiver_options={"commit": commit}) == [[1, 1], 2]

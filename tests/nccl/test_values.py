"""Proves the values, checks, representation and pickling of Config, UniqueId, RedOp and the
exceptions, and that a RedOp, a str and a value of torch's ReduceOp give the same result in every
reducing method, alone, in a group and in a plan, without torch if it is not used.
"""

from __future__ import annotations

import copy
import inspect
import pickle
import sys
from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from pynccl import errors, nccl, raw
from tests.support.launcher import Launcher
from tests.support.rank import Rank
from tests.support.ranks import on_ranks

_NAMES = {name for name, kind in inspect.getmembers(nccl.Config) if isinstance(kind, property)}
_OTHERS: dict[str, Any] = {
    "net_name": "Socket",
    "comm_name": "main",
    "init_timeout": 2.5,
    "timeout": 3.5,
    "check": 4,
    "on_timeout": "abort",
}
# Different integers of all other settings.
_CONFIG = _OTHERS | {name: n for n, name in enumerate(sorted(_NAMES - _OTHERS.keys()))}


def test_config_has_every_setting_as_keyword_and_attribute() -> None:
    empty, full = nccl.Config(), nccl.Config(**_CONFIG)
    for name, value in _CONFIG.items():
        assert getattr(empty, name) is None
        assert getattr(full, name) == value
        setattr(full, name, None)
        assert getattr(full, name) is None
        setattr(empty, name, value)
        assert getattr(empty, name) == value


def test_config_prints_and_pickles_its_settings() -> None:
    config = nccl.Config(min_ctas=3, comm_name="x")
    assert repr(config) == "Config(min_ctas=3, comm_name='x')"
    assert repr(nccl.Config()) == "Config()"
    for again in (pickle.loads(pickle.dumps(config)), copy.copy(config), copy.deepcopy(config)):
        assert repr(again) == repr(config)
        again.comm_name = "y"
        assert config.comm_name == "x"
    everything = nccl.Config(**_CONFIG)
    assert repr(pickle.loads(pickle.dumps(everything))) == repr(everything)


@pytest.mark.parametrize(
    ("error", "text", "settings"),
    [
        (TypeError, "Config() got an unexpected keyword argument 'maxctas'", {"maxctas": 1}),
        (TypeError, "max_ctas: expected an integer, got 'many'", {"max_ctas": "many"}),
        (ValueError, f"max_ctas: {2**40} does not fit", {"max_ctas": 2**40}),
        (TypeError, "comm_name: expected a str or None, got 3", {"comm_name": 3}),
        (ValueError, "surrogates not allowed", {"net_name": "\ud800"}),
        (ValueError, "init_timeout: 0.0", {"init_timeout": 0.0}),
        (ValueError, "init_timeout: -1.0", {"init_timeout": -1.0}),
        (ValueError, "init_timeout: nan", {"init_timeout": float("nan")}),
        (TypeError, "timeout: expected a number of seconds, got '5' (str)", {"timeout": "5"}),
        (TypeError, "init_timeout: expected a number of seconds", {"init_timeout": timedelta(1)}),
    ],
)
def test_config_refuses(error: type[Exception], text: str, settings: dict[str, object]) -> None:
    with pytest.raises(error) as caught:
        nccl.Config(**settings)
    assert text in str(caught.value)
    config = nccl.Config()
    (name,) = settings
    if hasattr(config, name):
        with pytest.raises(error):
            setattr(config, name, settings[name])
        assert getattr(config, name) is None


def test_config_that_the_library_refuses() -> None:
    unique_id = nccl.get_unique_id("host")
    with pytest.raises(nccl.NcclInvalidArgumentError, match="blocking=7"):
        nccl.Communicator(1, unique_id, 0, provider="host", config=nccl.Config(blocking=7))


def test_config_with_a_minimum_of_ctas_alone(provider: str) -> None:
    config, unique_id = nccl.Config(min_ctas=4), nccl.get_unique_id(provider)
    nccl.Communicator(1, unique_id, 0, provider=provider, config=config).close()
    assert config.max_ctas is None


def test_unique_id() -> None:
    unique_id, other = nccl.get_unique_id("host"), nccl.get_unique_id("host")
    data = bytes(unique_id)
    assert len(data) == len(unique_id) == raw.NCCL_UNIQUE_ID_BYTES == 128
    assert unique_id == nccl.UniqueId(data) == pickle.loads(pickle.dumps(unique_id))
    assert unique_id == nccl.UniqueId(bytearray(data)) == nccl.UniqueId(memoryview(data))
    assert unique_id == nccl.UniqueId(np.frombuffer(data, np.uint8))
    assert unique_id != other
    assert unique_id != data
    assert len({unique_id, nccl.UniqueId(data), other}) == 2
    assert repr(unique_id).startswith(f"<pynccl.nccl.UniqueId {data.hex()[:8]}")
    with pytest.raises(ValueError, match="data: has 127 bytes, a UniqueId has 128"):
        nccl.UniqueId(data[1:])
    with pytest.raises(TypeError, match="data: expected a UniqueId or 128 bytes, got 5"):
        nccl.UniqueId(5)


def test_version() -> None:
    version = nccl.get_version("host")
    assert version >= (2, 32, 0)
    code = raw.load("host").version
    assert code == version[0] * 10000 + version[1] * 100 + version[2]


def test_built_in_operators() -> None:
    for number, name in enumerate(("SUM", "PROD", "MAX", "MIN", "AVG")):
        op = getattr(nccl, name)
        assert op is getattr(nccl.RedOp, name)
        assert (op.name, op.value, repr(op)) == (name, number, f"RedOp.{name}")
        assert pickle.loads(pickle.dumps(op)) is op
        assert copy.deepcopy(op) is op
        op.close()
    with pytest.raises(TypeError):
        nccl.RedOp()


def test_own_operators(comm: nccl.Communicator) -> None:
    op, other = comm.pre_mul_sum(2, "int32"), comm.pre_mul_sum(3, "int32")
    assert repr(op) == "RedOp.PRE_MUL_SUM"
    assert op.value != other.value
    assert min(op.value, other.value) > nccl.AVG.value
    with pytest.raises(AttributeError):
        pickle.loads(pickle.dumps(op))
    array = np.ones(3, np.int32)
    comm.all_reduce(array, op)
    comm.all_reduce(array, other)
    assert (array == 6).all()


_OPERATORS = {
    "sum": nccl.SUM,
    "avg": nccl.AVG,
    "max": nccl.MAX,
    "min": nccl.MIN,
    "prod": nccl.PROD,
    "product": nccl.PROD,
}
_OF_TORCH = {"product": "PRODUCT", "prod": "PRODUCT"}


def _expected(name: str, nranks: int) -> int:
    values = np.arange(1, nranks + 1) * 2
    if name == "avg":
        return int(values.sum()) // nranks
    return int(getattr(values, {"product": "prod"}.get(name, name))())


def _forms(name: str, with_torch: bool) -> list[Any]:
    """All forms of one operator, including a str that is not interned."""
    assert sys.intern(name) is name
    made = "".join(list(name))
    assert made is not name
    forms: list[Any] = [name, made, _OPERATORS[name]]
    if with_torch:
        from torch.distributed import ReduceOp

        bare = getattr(ReduceOp, _OF_TORCH.get(name, name.upper()))
        forms += [bare, ReduceOp(bare)]
    return forms


def _reduce_in_all_forms(rank: Rank, with_torch: bool) -> int:
    comm, memory, nranks, count = rank.comm, rank.memory, rank.nranks, 0
    mine = np.full(nranks, 2 * (rank.rank + 1), np.int32)
    for name in _OPERATORS:
        want = _expected(name, nranks)
        for op in _forms(name, with_torch):
            a, b, c, d, e = (memory.put(mine) for _ in range(5))
            part = memory.put(mine[:1])
            comm.all_reduce(a, op)
            comm.reduce(b, 0, op)
            comm.reduce_scatter(c, op=op, out=part)
            with nccl.group():
                comm.all_reduce(d, op)
            with nccl.plan() as plan:
                comm.all_reduce(e, op)
            plan()
            for got in (a, d, e, *([b] if rank.rank == 0 else [])):
                assert memory.get(got).tolist() == [want] * nranks, (name, op)
            assert memory.get(part).tolist() == [want], (name, op)
            count += 1
    assert with_torch or "torch" not in sys.modules
    return count


def test_operators_without_torch(launch: Launcher) -> None:
    assert launch(3, _reduce_in_all_forms, False, fresh=True) == [3 * len(_OPERATORS)] * 3


def test_operators_with_torch(launch: Launcher, provider: str) -> None:
    pytest.importorskip("torch")
    counts = launch(2, _reduce_in_all_forms, True, provider=provider)
    assert counts == [5 * len(_OPERATORS)] * 2


@on_ranks(2)
def test_torchs_other_operators_are_refused(rank: Rank) -> None:
    from torch._C._distributed_c10d import _make_nccl_premul_sum
    from torch.distributed import ReduceOp

    comm, array = rank.comm, np.ones(4, np.float32)
    for bitwise in (ReduceOp.BAND, ReduceOp.BOR, ReduceOp(ReduceOp.BXOR)):
        with pytest.raises(
            ValueError, match=r"op: <RedOpType\.B\w+: \d> is not an operator of NCCL"
        ):
            comm.all_reduce(array, bitwise)
    for factor in (ReduceOp.PREMUL_SUM, _make_nccl_premul_sum(2.0)):
        with pytest.raises(ValueError, match=r"create one with Communicator\.pre_mul_sum\(\)"):
            comm.all_reduce(array, factor)
    with pytest.raises(ValueError, match="op: MAX is not defined on complex64"):
        comm.all_reduce(np.ones(2, np.complex64), ReduceOp.MAX)
    comm.all_reduce(array, comm.pre_mul_sum(0.5, "float32"))
    assert array.tolist() == [rank.nranks / 2] * 4


_CLASSES = {
    1: nccl.NcclUnhandledCudaError,
    2: nccl.NcclSystemError,
    3: nccl.NcclInternalError,
    4: nccl.NcclInvalidArgumentError,
    5: nccl.NcclInvalidUsageError,
    6: nccl.NcclRemoteError,
    7: nccl.NcclInProgressError,
    8: nccl.NcclTimeoutError,
}


def test_every_result_has_its_class() -> None:
    assert {int(result) for result in raw.ncclResult_t} == {0, *_CLASSES}
    for code, kind in _CLASSES.items():
        error = errors.from_result("text", code, "ncclSend", 3)
        assert type(error) is kind
        assert issubclass(kind, nccl.NcclError)
        assert issubclass(kind, RuntimeError)
    assert type(errors.from_result("new", 99, "ncclSend", 0)) is nccl.NcclError


@pytest.mark.parametrize(
    "error",
    [
        *(errors.from_result("what", code, "ncclSend", 2) for code in (*_CLASSES, 99)),
        nccl.DriverError("what", 400, "cuStreamQuery"),
        nccl.LibraryNotFoundError("what"),
        nccl.MissingFunctionError("what"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error: Exception) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error)
    assert str(again) == "what"
    assert vars(again) == vars(error)


def test_error_texts() -> None:
    unique_id = bytearray(bytes(nccl.get_unique_id("host")))
    unique_id[0] ^= 1
    with pytest.raises(nccl.NcclInvalidArgumentError) as caught:
        nccl.Communicator(2, bytes(unique_id), 1, provider="host")
    error = caught.value
    assert (error.code, error.function, error.rank) == (4, "ncclCommInitRankConfig", 1)
    assert "ncclCommInitRankConfig failed on rank 1: invalid argument: commId" in str(error)
    assert pickle.loads(pickle.dumps(error)).rank == 1

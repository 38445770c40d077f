"""Checks nccl_device_types.h and nccl_device_functions.inc of csrc/abi against NCCL's own headers.

Those headers are C++ for host and device compilers. The host compiler reads them here, and each
check is a static assertion. A complete struct is compared with the headers that contain its newest
layout. For structs with a list of fields, older headers contain those listed for their version.
"""

from __future__ import annotations

from tests.abi import declarations as decl
from tests.abi.static_checks import Source

OLDEST = 22800  # the first version with device headers

# The first version with our layout of a struct.
SINCE = {
    "ncclTeam": 22800,
    "ncclMultimemHandle": 22800,
    "ncclLsaBarrierHandle": 22800,
    "ncclGinBarrierHandle": 22907,
    "ncclLLA2AHandle": 22807,
    "ncclCftBarrierHandle": 23100,
    "ncclDevResourceRequirements_t": 22807,
    "ncclTeamRequirements_t": 22800,
    "ncclResourceWindow_vidmem": 23100,
    "ncclWindow_vidmem": 23200,
    "ncclDevComm": 23100,
}
LISTED = {
    "ncclDevCommRequirements_t": ("device_requirements_fields.inc", 22900),
    "ncclCommProperties_t": ("comm_properties_fields.inc", 22900),
}
INITIALIZERS = {
    "ncclDevCommRequirements_t": "NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER",
    "ncclCommProperties_t": "NCCL_COMM_PROPERTIES_INITIALIZER",
}
# The first version that declares the type, if it is not 2.28.
NAMED_SINCE = {
    "ncclGinBarrierHandle": 22807,
    "ncclCftBarrierHandle": 23100,
    "ncclResourceWindow_vidmem": 23000,
    "ncclCommProperties_t": 22900,
}
# Earlier headers overload the functions of teams for kernels, so their names are ambiguous.
OVERLOADED_BEFORE = 23100
# The fields of a window that kernels read, the same in all versions.
WINDOW_OF_ALL = ("winHost", "lsaFlatBase", "lsaRank", "worldRank", "stride4G", "mcOffset4K")
# Earlier headers use other names for the GIN type ncclGinType_t and its values.
ENUMS_SINCE = {
    "ncclGinConnectionType_t": 22907,
    "ncclGinType_t": 23100,
    "ncclCftTeamMode_t": 23100,
}
# Enumerators added by later versions.
ENUMERATOR_SINCE = {"NCCL_GIN_CONNECTION_CUSTOM_STRIDE": 23100}


def _field(source: Source, struct: str, field: str) -> None:
    source.check(
        f"offsetof(abi::{struct}, {field}) == offsetof(::{struct}, {field})",
        f"struct {struct}: offset of {field}",
    )
    source.check(
        f"sizeof(abi::{struct}::{field}) == sizeof(::{struct}::{field})",
        f"struct {struct}: size of {field}",
    )


def _listed(source: Source, struct: str, version: int) -> None:
    """Check a versioned struct: the fields of this version, its size, and the initializer."""
    file, since = LISTED[struct]
    if version < since:
        return
    fields = [field.name for field in decl.fields(file) if field.since <= version]
    for field in ("size", "magic", "version", *fields):
        _field(source, struct, field)
    last = fields[-1]
    end = f"offsetof(abi::{struct}, {last}) + sizeof(abi::{struct}::{last})"
    source.check(
        f"roundUp({end}, alignof(abi::{struct})) == sizeof(::{struct})", f"struct {struct}: size"
    )
    source.line(f"constexpr abi::{struct} ours_{struct}{{}};")
    source.line(f"constexpr ::{struct} theirs_{struct} = {INITIALIZERS[struct]};")
    for field in ("magic", *fields):
        if field != "ginSupport":
            source.check(
                f"sameValue(ours_{struct}.{field}, theirs_{struct}.{field})",
                f"struct {struct}: default of {field}",
            )


def _layout(source: Source, version: int) -> None:
    """Check the entry of device_layouts.inc for this version."""
    layout = next(sizes for first, *sizes in reversed(layouts()) if version >= first)
    requirements, comm, base, stride = layout
    source.check(
        f"sizeof(::ncclDevCommRequirements_t) == {requirements}", "size of the requirements"
    )
    source.check(f"sizeof(::ncclDevComm) == {comm}", "size of ncclDevComm")
    for field, offset in (("lsaFlatBase", base), ("stride4G", stride)):
        source.check(
            f"offsetof(::ncclDevComm, resourceWindow_inlined.{field}) == {offset}",
            f"ncclDevComm: offset of resourceWindow_inlined.{field}",
        )


def device_source(header_text: str) -> Source:
    """Return checks of our declarations against the nccl_device headers beside this nccl.h."""
    version = decl.header_version(header_text)
    ours = decl.own("nccl_device_types.h")
    source = Source(
        '#include "abi/nccl_types.h"',
        "#include <cuda.h>",
        "#include <nccl.h>",
        "#include <nccl_device.h>",
    )
    for name in ("ncclComm_t", "ncclWindow_t"):
        source.handle(name)
    source.enum("ncclResult_t", ["ncclSuccess"])
    for name, since in ENUMS_SINCE.items():
        if version >= since:
            values = [v for v in ours.enums[name] if ENUMERATOR_SINCE.get(v, 0) <= version]
            source.enum(name, values)
    for name, since in SINCE.items():
        if version >= since:
            for field in ours.structs[name]:
                _field(source, name, field)
            source.check(f"sizeof(abi::{name}) == sizeof(::{name})", f"struct {name}: size")
    for field in WINDOW_OF_ALL:
        _field(source, "ncclWindow_vidmem", field)
    for name in LISTED:
        _listed(source, name, version)
    _layout(source, version)
    for name in (*SINCE, *LISTED):
        if version >= NAMED_SINCE.get(name, 22800):
            source.pair(name)
    source.function_types("nccl_functions.inc", "since")
    for function in decl.device_functions():
        since = max(function.since, 22807)  # 2.28.3 uses other names for the handles
        if version >= (since if "Team" not in function.name else OVERLOADED_BEFORE):
            source.signature(function.name, function.name, function.parameters)
    source.entry_count("nccl_device_functions.inc", "FUNCTION", len(decl.device_functions()))
    return source


def layouts() -> list[tuple[int, ...]]:
    """Return LAYOUT(since, requirements, comm, base, stride) of csrc/abi/device_layouts.inc."""
    return [
        tuple(map(int, entry.head[:5]))
        for entry in decl.entries(decl.ABI / "device_layouts.inc", "LAYOUT")
    ]

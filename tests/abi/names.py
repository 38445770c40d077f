"""Compares our names with those of a real nccl.h, in both directions."""

from __future__ import annotations

from collections.abc import Iterable

from tests.abi import declarations as decl
from tests.abi.declarations import Declarations
from tests.abi.report import Report
from tests.abi.static_checks import INITIALIZERS, NCCL_CONSTANTS, VERSIONED, is_newest

# Enumerators of nccl.h that we do not declare.
OTHER_ENUMERATORS = {
    "ncclChar": "another name of ncclInt8",
    "ncclInt": "another name of ncclInt32",
    "ncclHalf": "another name of ncclFloat16",
    "ncclFloat": "another name of ncclFloat32",
    "ncclDouble": "another name of ncclFloat64",
    "ncclNumOps_dummy": "helps nccl.h to compute ncclMaxRedOp",
}
OTHER_ENUMS = {"ncclRedOp_dummy_t"}

# Macros of nccl.h that are not constants of the ABI.
OTHER_MACROS = {
    "NCCL_H_",
    "NCCL_MAJOR",
    "NCCL_MINOR",
    "NCCL_PATCH",
    "NCCL_SUFFIX",
    "NCCL_COMM_NULL",
    "NCCL_CONFIG_UNDEF_PTR",
    *INITIALIZERS.values(),
}


def differences(ours: Iterable[str], theirs: Iterable[str], where: str) -> list[str]:
    """Return a line for each name that is missing on one side."""
    ours, theirs = set(ours), set(theirs)
    lines = [f"{name}: ours, but not in {where}" for name in sorted(ours - theirs)]
    return lines + [f"{name}: in {where}, but not ours" for name in sorted(theirs - ours)]


def expected_functions(version: int) -> set[str]:
    """Return the functions of an NCCL version, according to our list."""
    return {function.name for function in decl.nccl_functions() if function.since <= version}


def expected_fields(name: str, fields: tuple[str, ...], version: int) -> tuple[str, ...]:
    """Return the fields of a struct in an NCCL version, according to our lists."""
    if name not in VERSIONED:
        return fields
    listed = decl.fields(VERSIONED[name])
    head = fields[: len(fields) - len(listed)]
    return head + tuple(field.name for field in listed if field.since <= version)


def check_names(report: Report, title: str, header_text: str, ours: Declarations) -> None:
    """Check that a header declares exactly our names for its version."""
    version = decl.header_version(header_text)
    theirs = decl.declarations(header_text)
    declared = decl.header_functions(header_text)
    expected = expected_functions(version)
    profiling = {f"p{name}" for name in expected}
    problems = differences(expected | profiling, declared, "nccl.h")
    newest = is_newest(version)
    for function in decl.nccl_functions():
        # Types do not distinguish parameters, names do. Some releases have renamed them.
        theirs_parameters = declared.get(function.name, function.parameters)
        if newest and function.parameters != theirs_parameters:
            problems.append(f"{function.name}: the parameters are {', '.join(theirs_parameters)}")
    report.check(f"{title}: functions of nccl.h", len(expected), "functions", problems)

    mine = {value for values in ours.enums.values() for value in values} | set(ours.enums)
    real = {value for values in theirs.enums.values() for value in values} | set(theirs.enums)
    real -= OTHER_ENUMERATORS.keys() | OTHER_ENUMS
    wanted = mine if newest else mine & real
    problems = differences(wanted, real, "nccl.h")
    report.check(f"{title}: enums of nccl.h", len(wanted), "names", problems)

    problems, count = [], 0
    wanted_structs = ours.structs.keys() if newest else ours.structs.keys() & theirs.structs.keys()
    problems += differences(wanted_structs, theirs.structs, "nccl.h")
    for name in sorted(wanted_structs & theirs.structs.keys()):
        fields = expected_fields(name, ours.structs[name], version)
        count += len(fields)
        if fields != theirs.structs[name]:
            problems += differences(fields, theirs.structs[name], name)
            problems.append(f"{name}: the order is {', '.join(theirs.structs[name])}")
    report.check(f"{title}: structs of nccl.h", count, "fields", problems)

    macros = {name for name in decl.header_macros(header_text) if name.startswith("NCCL_")}
    mirrored = {macro for macro in NCCL_CONSTANTS.values() if macro}
    flags = {constant.name for constant in decl.constants() if constant.since <= version}
    wanted = (mirrored if newest else mirrored & macros) | flags
    problems = differences(wanted, macros - OTHER_MACROS, "nccl.h")
    report.check(f"{title}: constants of nccl.h", len(wanted), "macros", problems)


def check_own(report: Report, ours: Declarations) -> None:
    """Check that our files agree with each other, and that the tables here are complete."""
    problems = differences(NCCL_CONSTANTS, ours.constants, "nccl_types.h")
    problems += differences(INITIALIZERS, INITIALIZERS.keys() & ours.structs.keys(), "nccl_types.h")
    functions = [function.name for function in decl.nccl_functions()]
    twice = {name for name in functions if functions.count(name) > 1}
    problems += [f"{name}: repeated in nccl_functions.inc" for name in sorted(twice)]
    count = len(ours.constants) + len(functions)
    report.check("csrc/abi with itself", count, "names", problems)

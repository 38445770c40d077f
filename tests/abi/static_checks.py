"""Writes C++ files whose static assertions check our declarations against nccl.h and cuda.h."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tests.abi import declarations as decl
from tests.abi.declarations import Declarations

# Each constant of nccl_types.h, and what nccl.h calls it; None where no macro is its counterpart.
NCCL_CONSTANTS: dict[str, str | None] = {
    "kVersion": "NCCL_VERSION_CODE",
    "kOldestVersion": None,  # what pynccl supports
    "kUniqueIdBytes": "NCCL_UNIQUE_ID_BYTES",
    "kUndefInt": "NCCL_CONFIG_UNDEF_INT",
    "kUndefFloat": "NCCL_UNDEF_FLOAT",
    "kSplitNoColor": "NCCL_SPLIT_NOCOLOR",
    "kApiMagic": "NCCL_API_MAGIC",
    "kSimInfoMagic": None,  # in NCCL_SIM_INFO_INITIALIZER only
}

# Enumerators that count others and so differ from release to release.
COUNTS = {"ncclNumResults", "ncclNumTypes"}

INITIALIZERS = {
    "ncclConfig_t": "NCCL_CONFIG_INITIALIZER",
    "ncclCollConfig_t": "NCCL_COLLCONFIG_INITIALIZER",
    "ncclSimInfo_t": "NCCL_SIM_INFO_INITIALIZER",
    "ncclEncryptionConfig_t": "NCCL_ENCRYPTION_CONFIG_INITIALIZER",
}

# The structs that grow from release to release, with the file that says how.
VERSIONED = {
    "ncclConfig_t": "config_fields.inc",
    "ncclCollConfig_t": "coll_config_fields.inc",
}

# cuda.h maps a call to its newest form; where we ask for another one, this says why.
OLDER_SYMBOLS = {
    "cuEventElapsedTime": "_v2 has the same signature, but only drivers from CUDA 12.8 on have it",
    "cuStreamGetCaptureInfo_v2": "_v3 adds the edges' data, only drivers from CUDA 12.3 on have it",
}


class Source:
    """A C++ file under construction, and how many assertions are in it."""

    def __init__(self, *preamble: str) -> None:
        self.lines = [
            "// Written by tests/abi/static_checks.py.",
            *preamble,
            '#include "same.h"',
            "namespace abi = pynccl::abi;",
            "using namespace pynccl::test;",
        ]
        self.count = 0

    def line(self, text: str) -> None:
        self.lines.append(text)

    def check(self, condition: str, message: str) -> None:
        self.lines.append(f"static_assert({condition}, {json.dumps(message)});")
        self.count += 1

    def pair(self, name: str) -> None:
        """Takes our type and the global one as the same; the checks beside it must prove it."""
        self.line("namespace pynccl::test {")
        self.line(f"template <> struct Same<abi::{name}, ::{name}> : std::true_type {{}};")
        self.line("}")

    def enum(self, name: str, enumerators: Sequence[str]) -> None:
        self.pair(name)
        self.check(f"sameEnum<abi::{name}, ::{name}>", f"enum {name}: kind, size or signedness")
        for value in enumerators:
            self.check(
                f"static_cast<long long>(abi::{value}) == static_cast<long long>(::{value})",
                f"enum {name}: value of {value}",
            )

    def handle(self, name: str) -> None:
        self.pair(name)
        self.check(f"opaqueHandle<abi::{name}> && opaqueHandle<::{name}>", f"handle {name}: kind")

    def signature(self, name: str, theirs: str, parameters: Sequence[str]) -> None:
        types = f"functions::{name}, decltype(::{theirs})"
        self.check(f"sameResult<{types}>", f"{theirs}: result")
        self.check(f"sameArity<{types}>", f"{theirs}: number of parameters")
        for index, parameter in enumerate(parameters):
            self.check(
                f"sameParameter<{index}, {types}>",
                f"{theirs}: parameter {index + 1} ({parameter})",
            )

    def entry_count(self, file: str, macro: str, count: int) -> None:
        """Checks that declarations.py read as many entries of a list as the compiler does."""
        variable = f"count_{file.removesuffix('.inc')}"
        self.line(f"constexpr int {variable} = 0\n#define {macro}(...) +1")
        self.line(f'#include "abi/{file}"\n#undef {macro}\n;')
        self.check(f"{variable} == {count}", f"{file}: {count} entries read, not all there are")

    def function_types(self, file: str, first: str) -> None:
        """Declares each function of a list as a type in namespace pynccl::abi::functions."""
        self.line("namespace pynccl::abi::functions {")
        self.line('#include "abi/c_params.inc"')
        self.line(f"#define FUNCTION({first}, result, name, ...) using name = result(__VA_ARGS__);")
        self.line(f'#include "abi/{file}"\n#include "abi/undef.inc"')
        self.line("}\nnamespace functions = pynccl::abi::functions;")

    def text(self) -> str:
        return "\n".join([*self.lines, "int main() {}", ""])


def _struct(source: Source, name: str, fields: Sequence[str], whole: bool) -> None:
    """A struct, or as much of ours as an older release has."""
    source.pair(name)
    source.check(
        f"plainStruct<abi::{name}> && plainStruct<::{name}>", f"struct {name}: not a plain struct"
    )
    source.check(f"alignof(abi::{name}) == alignof(::{name})", f"struct {name}: alignment")
    size = f"sizeof(abi::{name})"
    if not whole:
        last = fields[-1]
        end = f"offsetof(abi::{name}, {last}) + sizeof(abi::{name}::{last})"
        size = f"roundUp({end}, alignof(abi::{name}))"
    source.check(f"{size} == sizeof(::{name})", f"struct {name}: size")
    for field in fields:
        where = f"struct {name}: field {field}"
        source.check(
            f"offsetof(abi::{name}, {field}) == offsetof(::{name}, {field})", f"{where}, offset"
        )
        ours = f"std::remove_reference_t<decltype((std::declval<abi::{name}&>().{field}))>"
        theirs = f"std::remove_reference_t<decltype((std::declval<::{name}&>().{field}))>"
        source.check(f"same<{ours}, {theirs}>", f"{where}, type")


def _defaults(source: Source, name: str, fields: Sequence[str], whole: bool) -> None:
    """A default-made struct of ours says what the header's own initializer says."""
    source.line(f"constexpr abi::{name} ours_{name}{{}};")
    source.line(f"constexpr ::{name} theirs_{name} = {INITIALIZERS[name]};")
    for field in fields:
        if field not in ("size", "version") or whole:
            source.check(
                f"sameValue(ours_{name}.{field}, theirs_{name}.{field})",
                f"struct {name}: default of {field}",
            )


def _versioned(source: Source, name: str, version: int) -> None:
    """The list of a struct's fields says the same types as our struct."""
    for field in decl.fields(VERSIONED[name]):
        if field.since <= version:
            source.line(f"namespace pynccl::abi {{ using {name}_{field.name} = {field.type}; }}")
            source.check(
                f"std::is_same_v<abi::{name}_{field.name}, decltype(abi::{name}::{field.name})>",
                f"{VERSIONED[name]}: type of {field.name}",
            )


def _constants(source: Source, header_text: str, version: int) -> None:
    macros = decl.header_macros(header_text)
    for name, macro in NCCL_CONSTANTS.items():
        if macro in macros and (name != "kVersion" or is_newest(version)):
            source.check(f"abi::{name} == {macro}", f"{name} is not {macro}")
    for constant in decl.constants():
        if constant.since <= version and constant.name in macros:
            source.check(f"{constant.name} == {constant.value}", f"value of {constant.name}")


def _types(source: Source, header_text: str, version: int, ours: Declarations) -> None:
    theirs = decl.declarations(header_text)
    macros = decl.header_macros(header_text)
    whole = is_newest(version)
    known = {value for values in theirs.enums.values() for value in values}
    for name in (name for name in ours.enums if name in theirs.enums):
        values = [v for v in ours.enums[name] if v in known and (whole or v not in COUNTS)]
        source.enum(name, values)
    for name in ours.handles:
        if name in theirs.handles or name.startswith("cuda"):
            source.handle(name)
    # In the order of the file: a struct may be made of those before it.
    for name in (name for name in ours.structs if name in theirs.structs):
        fields = [field for field in ours.structs[name] if field in theirs.structs[name]]
        _struct(source, name, fields, whole)
        if INITIALIZERS.get(name) in macros:
            _defaults(source, name, fields, whole)
        if name in VERSIONED:
            _versioned(source, name, version)


def nccl_source(header_text: str, ours: Declarations) -> Source:
    """Our NCCL declarations against nccl.h; what only newer releases have is left out."""
    version = decl.header_version(header_text)
    source = Source(
        "#define NCCL_OS_LINUX 1  // nccl.h declares ncclResetDebugInit for those who say it",
        '#include "abi/nccl_types.h"',
        "#include <nccl.h>",
    )
    _constants(source, header_text, version)
    _types(source, header_text, version, ours)
    source.function_types("nccl_functions.inc", "since")
    declared = decl.header_functions(header_text)
    functions = decl.nccl_functions()
    for function in functions:
        if function.name in declared:
            source.signature(function.name, function.name, function.parameters)
    count = len(functions) + len(decl.device_functions())  # which the list includes
    source.entry_count("nccl_functions.inc", "FUNCTION", count)
    source.entry_count("constants.inc", "CONSTANT", len(decl.constants()))
    for file in VERSIONED.values():
        source.entry_count(file, "FIELD", len(decl.fields(file)))
    return source


def driver_source(ours: Declarations) -> Source:
    """Our driver declarations against cuda.h, each symbol by its own name."""
    source = Source(
        "#define __CUDA_API_VERSION_INTERNAL 1  // declares the older forms of the calls too",
        '#include "abi/driver_types.h"',
        "#include <cuda.h>",
    )
    for name, values in ours.enums.items():
        source.enum(name, values)
    for name in ours.handles:
        source.handle(name)
    for name in ours.aliases:
        source.check(f"same<abi::{name}, ::{name}>", f"type {name}")
    for name in ours.constants:
        if name.startswith("CU_"):
            source.check(f"abi::{name} == ::{name}", f"value of {name}")
    source.function_types("driver_functions.inc", "symbol")
    functions = decl.driver_functions()
    for function in functions:
        source.signature(function.name, function.symbol, function.parameters)
    source.entry_count("driver_functions.inc", "FUNCTION", len(functions))
    return source


def symbol_source() -> Source:
    """The symbols that cuda.h makes of the calls we name are those that we load."""
    source = Source('#include "abi/driver_types.h"', "#include <cuda.h>")
    source.line("#define TEXT(symbol) #symbol\n#define EXPANDED(symbol) TEXT(symbol)")
    for function in decl.driver_functions():
        if function.symbol not in OLDER_SYMBOLS:
            source.check(
                f'std::string_view(EXPANDED(cu{function.name})) == "{function.symbol}"',
                f"{function.symbol} is not what cuda.h makes of cu{function.name}",
            )
    return source


def is_newest(version: int) -> bool:
    """Whether a header must have everything that we declare."""
    text = decl.without_comments((decl.ABI / "nccl_types.h").read_text())
    own = int(text.split("kVersion = ")[1].split(";")[0])
    return version // 100 >= own // 100

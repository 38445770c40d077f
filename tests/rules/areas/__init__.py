"""The rules, by subject. Importing this package registers them."""

from tests.rules.areas import (
    arguments,
    configuration,
    creation,
    derived,
    elastic,
    ending,
    groups,
    memory,
    nonblocking,
    queries,
)

__all__ = [
    "arguments",
    "configuration",
    "creation",
    "derived",
    "elastic",
    "ending",
    "groups",
    "memory",
    "nonblocking",
    "queries",
]

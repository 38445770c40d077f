"""A pytest plugin for pytest-xdist, which kills workers that end slowly: their counts get lost."""

from __future__ import annotations

from xdist.workermanage import NodeManager  # type: ignore[import-untyped]

NodeManager.EXIT_TIMEOUT = 300  # seconds, instead of 10

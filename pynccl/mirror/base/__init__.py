"""Errors, operators, checks, backends and the job, independent of groups."""

__all__: list[str] = []

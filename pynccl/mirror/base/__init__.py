"""Errors, operators, checks, backends and the store, independent of groups."""

__all__: list[str] = []

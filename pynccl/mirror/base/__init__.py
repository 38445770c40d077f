"""What needs no group: errors, operators, checks, backends, the store."""

__all__: list[str] = []

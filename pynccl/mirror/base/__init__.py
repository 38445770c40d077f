"""What needs no group: errors, operators, checks, backends, the store, the watchdog."""

__all__: list[str] = []

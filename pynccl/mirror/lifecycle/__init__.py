"""How groups are made and destroyed."""

__all__: list[str] = []

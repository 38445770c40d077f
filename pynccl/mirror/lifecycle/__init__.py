"""Creation and destruction of process groups."""

__all__: list[str] = []

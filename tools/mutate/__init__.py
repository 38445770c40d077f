"""Changes of the sources that the tests must notice: ``python -m tools.mutate``."""

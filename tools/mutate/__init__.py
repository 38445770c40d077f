"""Mutation testing: source changes that the tests must detect (``python -m tools.mutate``)."""

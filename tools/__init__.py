"""Generators and checks of the repository: each is run as python -m tools.<name>."""

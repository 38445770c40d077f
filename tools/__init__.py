"""Repository generators and checks, run as python -m tools.<name>."""

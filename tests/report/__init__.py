"""Runs the tests that need a GPU and writes a report: see run.py."""

"""Runs the tests that need a GPU, and writes down what they gave: see run.py."""

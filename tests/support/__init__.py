"""Shared by the tests: launching ranks, reference results, buffers, tools."""

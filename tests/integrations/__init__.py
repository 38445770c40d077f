"""Checks of the adapters of pynccl.weights against released packages: `make test-integrations`."""

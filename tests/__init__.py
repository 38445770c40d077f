"""Tests, by subject: one folder for each layer of the package, and support for what they share."""

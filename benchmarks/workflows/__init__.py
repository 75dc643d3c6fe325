"""Workflows of tenure and of its peers, measured in one interleaved run: `python -m benchmarks.workflows`."""

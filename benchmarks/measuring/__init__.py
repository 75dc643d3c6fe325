"""The workloads of the project's own benchmarks, run through the public API by worker processes.

A round counts only if all of its jobs succeeded. `tenure bench` has a small form of its own.
"""

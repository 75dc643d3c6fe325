"""Deterministic simulation: the real roles, on virtual time, with seeded faults.

A run is a function of its seed and options: the same trace, to the last step, whenever and wherever it is made. In its
first phase things break (processes die at any await, answers get lost, clocks jump) and every promise is checked after
every step; in the second nothing breaks any more, and everything must come to an end.
"""

"""Deterministic simulation: the real roles, on virtual time, with seeded faults.

A run is a function of its seed and options: it has the same trace wherever it is made. In the first phase faults occur
(processes die at any await, replies get lost, clocks jump) and every invariant is checked after every step; in the
second no faults occur, and every job must end.
"""

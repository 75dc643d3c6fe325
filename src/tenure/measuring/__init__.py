"""What a machine and a database give: workloads that are run through the public API, and counted only if they are done.

`tenure bench` runs them on one database; the project's own suite runs them on several, side by side.
"""

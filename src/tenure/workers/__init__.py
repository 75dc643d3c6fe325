"""The roles that run jobs: the pool claims, the runner runs attempts, the completer writes outcomes, maintenance renews
leases and recovers jobs.

Each role uses only its part of the store's contract.
"""

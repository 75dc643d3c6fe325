"""The roles that run jobs: the pool claims, the runner runs, the heart keeps leases, recovery takes back what was lost.

Each holds only the part of the store that it may use. What a run came to is a value, and `outcomes.settlement` turns
it into the one operation that records it.
"""

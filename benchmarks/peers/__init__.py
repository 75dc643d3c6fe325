"""The same work through tenure and through its peers, in one interleaved run: `make bench-peers`."""

"""One small program for each peer, run in that peer's own environment. They know the peer and `protocol`, no more."""

"""The supervisor of worker processes, and the control channel to each."""

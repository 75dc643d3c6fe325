"""One driver for each engine. It runs in an environment of its own."""

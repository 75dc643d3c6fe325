"""The model of a store: dictionaries and `decide`. Tests compare other stores with it, and the simulator runs on it."""

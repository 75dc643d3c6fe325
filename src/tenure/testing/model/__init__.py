"""The model store: dictionaries and `decide`, the oracle that other stores are compared with."""

"""The SQLite store: one file, no server."""

"""A whole database as lines of JSON, and back into an empty one. See docs/guides/export.md."""

"""The history checker: compares what clients observed with what the database holds."""

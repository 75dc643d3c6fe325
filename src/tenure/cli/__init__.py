"""The command `tenure`: one file per command group. Commands say what they found; they decide nothing about jobs."""

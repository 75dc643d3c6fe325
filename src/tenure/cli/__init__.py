"""The command `tenure`: one file per command group. Commands print what they read; they decide nothing about jobs."""

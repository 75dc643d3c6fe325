"""The Django app of the test project."""

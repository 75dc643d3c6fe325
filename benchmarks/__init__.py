"""Programs that measure. None of them is a test, and no test asserts a time."""

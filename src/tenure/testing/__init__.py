"""For tests: a harness for an app's jobs, a manual clock, the contract kit for stores, and the history checker.

The kit in `tenure.testing.contract` needs pytest and pytest-asyncio, and the fixtures in `tenure.testing.pytest_plugin`
need pytest; nothing else here does.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("pytest") is not None:
    import pytest

    # A failed assertion of the kit shows its values, as one in a test file does.
    pytest.register_assert_rewrite("tenure.testing.contract", "tenure.testing.store_check", "tenure.testing.driver")

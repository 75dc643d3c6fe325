"""What a test needs: a manual clock, and the contract kit by which any store proves itself.

The kit is in `tenure.testing.contract` and needs pytest and pytest-asyncio; nothing else here does.
"""

from __future__ import annotations

from importlib.util import find_spec

if find_spec("pytest") is not None:
    import pytest

    # A failed assertion of the kit should say what it saw, as one in a test file does.
    pytest.register_assert_rewrite("tenure.testing.contract", "tenure.testing.log_check", "tenure.testing.driver")

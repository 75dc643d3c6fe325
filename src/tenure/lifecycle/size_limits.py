"""How large content may be. Every store enforces the same limits, before it writes."""

from __future__ import annotations

CONTENT_BYTES_MAX = 256 * 1024
"""The largest payload, and the largest result or error of a job, signal or message, as JSON text."""
STEP_BYTES_MAX = 2 * 1024 * 1024
"""The largest result or error of a workflow's step, as JSON text."""
ARTIFACT_BYTES_MAX = 32 * 1024 * 1024
"""The largest artifact."""

"""The limits on the size and the number of contents. Every store enforces the same ones, before it writes."""

from __future__ import annotations

CONTENT_BYTES_MAX = 256 * 1024
"""The largest signal or message, and unless the app allows more, the largest payload or result, as JSON text."""
STORED_BYTES_MAX = 2 * 1024 * 1024
"""The largest payload or result that a store takes. An app allows less: `CONTENT_BYTES_MAX` by default."""
STEP_BYTES_MAX = 2 * 1024 * 1024
"""The largest result of a step, as JSON text, unless the app allows more."""
STORED_STEP_BYTES_MAX = 8 * 1024 * 1024
"""The largest result or error of a step that a store takes."""
ARTIFACT_BYTES_MAX = 32 * 1024 * 1024
"""The largest artifact."""
SIGNALS_MAX = 10_000
"""The most signals that a job is sent, unless its policy sets another number."""
PROGRESS_LENGTH_MAX = 2000
"""The longest progress message, in characters."""
REV_MAX = 2**31 - 1
"""The largest revision that every store can hold."""
CHILDREN_MAX = 2**31 - 2
"""The largest number of live children that every store can compare."""
TRACE_LENGTH_MAX = 200
"""The longest trace that an engine reports, in characters."""

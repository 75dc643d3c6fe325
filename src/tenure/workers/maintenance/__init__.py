"""The maintenance thread: heartbeats, recovery, schedules, retention, registration."""

"""The maintenance thread: heartbeats, recovery, schedules, registration."""

"""Durable workflows: functions whose steps are recorded, so that a crash costs at most the step that was running."""

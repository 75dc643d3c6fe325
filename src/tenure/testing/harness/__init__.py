"""The test harness: runs an app's jobs in memory, on a manual clock."""

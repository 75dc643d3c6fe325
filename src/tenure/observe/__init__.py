"""What can be seen of tenure from outside: metrics, traces, logs.

Recording is plain counting that costs next to nothing and needs nothing installed (`meter`). What shows it to the world
needs more, and is imported only where it is asked for: `prometheus` and `serving` need `tenure[metrics]`, `tracing`
needs `tenure[otel]`. Nothing here changes a job, and nothing a worker does waits for anything here.
"""

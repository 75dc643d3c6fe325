"""Metrics, traces and logs of tenure.

Counting (`meter`) is cheap and needs no further package. `prometheus` and `metrics_server` need `tenure[metrics]`,
`tracing` needs `tenure[otel]`; they are imported only when used. Nothing here changes a job or delays a worker.
"""

"""Remote engines: jobs that programs in any language run, over a WebSocket or HTTP."""

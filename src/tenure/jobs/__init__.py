"""What a declared job is: its definition, the context that its function receives, middleware, settings."""

"""Jobs in child processes: the worker's side (parent), the child's side, and their protocol."""

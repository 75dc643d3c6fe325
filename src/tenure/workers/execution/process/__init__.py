"""Jobs in child processes: the parent's side, the child's side, and their protocol."""

"""What the command line and the server both show of jobs, workers and queues: plain data, without formatting."""

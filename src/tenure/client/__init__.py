"""What `App` is made of: job functions, handles, and the administration of jobs, queues and schedules."""

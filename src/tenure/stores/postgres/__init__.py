"""The PostgreSQL store: a fleet of workers on one database."""

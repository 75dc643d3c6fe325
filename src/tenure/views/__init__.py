"""What the command line and the server both show."""

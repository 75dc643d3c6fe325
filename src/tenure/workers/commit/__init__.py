"""The commit block: the user's SQL and the commit mark in one transaction."""

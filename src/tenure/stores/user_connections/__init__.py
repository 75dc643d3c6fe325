"""The user's own connection or session: new jobs and the commit mark inside a transaction of the user.

A transaction is begun, committed or rolled back only where the caller asks for it. On a connection in autocommit mode,
each call outside of a transaction is a transaction of its own.
"""

from tenure.stores.user_connections.protocol import run_sync
from tenure.stores.user_connections.transaction import UserTransaction

__all__ = ["UserTransaction", "run_sync"]

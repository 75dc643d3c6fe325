"""For receivers of tenure's webhooks: verify a request, and apply its effect once.

It needs no database of tenure, and imports the standard library and `tenure.errors` only.

>>> message = verify(request_headers, body, ["whsec_…"])            # doctest: +SKIP
>>> with connection:                                                # doctest: +SKIP
...     if record_receipt(connection, message.id):
...         connection.execute("update accounts set …")
"""

from tenure.inbox.receipts import CREATE_TABLE, record_receipt, record_receipt_async
from tenure.inbox.received import ReceivedMessage, verify

__all__ = ["CREATE_TABLE", "ReceivedMessage", "record_receipt", "record_receipt_async", "verify"]

"""One module per library whose connections can be lent to us. Each is imported when such a connection is met."""

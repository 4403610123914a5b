"""Arrow IPC as other readers need it: byte order, metadata version, framing, the file format."""

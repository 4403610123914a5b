"""Arrow IPC: encapsulated messages, schemas, files, encoding and decoding."""

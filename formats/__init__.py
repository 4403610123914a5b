"""The formats of messages: parsing, encoding and checks, without I/O."""

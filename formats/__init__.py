"""What is inside a message: bytes in, objects out, no I/O."""

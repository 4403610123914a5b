"""FlatBuffers schemas, and the readers that flatc generates from them."""

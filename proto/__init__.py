"""The messages of Arrow Flight: their declaration, and the code that protoc generates from it."""

"""Readers: streams, blocking and asynchronous."""

"""Decoding of data from strangers in a child process, with bounds on its memory and time."""

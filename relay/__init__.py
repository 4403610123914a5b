"""The relay: a daemon that serves the datasets of other daemons from a cache of their shards.

A shard of a published dataset crosses the network once, as the file that the upstream stores. The
cache is a folder of files named by their SHA-256, which the daemon maps and sends like its own.
Everything else passes through: the relay reads what a request selects, and sends it on.
"""

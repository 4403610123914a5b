"""The daemon: catalog, sessions, configuration."""

"""Clients: data streams, datasets of a control plane, clusters."""

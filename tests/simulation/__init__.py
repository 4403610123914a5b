"""The simulation of the whole system from a seed. See README.md in this folder."""

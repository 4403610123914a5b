"""The client of one control plane, and the datasets that it reads."""

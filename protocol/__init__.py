"""The dissociated protocol, without I/O: tags, messages, splitting, reassembly, leases."""

"""How messages travel: one module per URI scheme behind one small interface."""

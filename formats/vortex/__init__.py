"""Vortex IPC: encoded arrays in messages.

Only `decoder`, `encoder` and `array_body.decode_body` need the extra ``vortex``.
"""

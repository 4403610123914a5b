"""The Flight service as a client calls it: channel, requests, responses, errors."""

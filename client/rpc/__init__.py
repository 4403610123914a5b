"""The Flight service as a client calls it: channel, requests, responses, errors."""

from ...transport.grpc_usage import import_grpc

import_grpc()

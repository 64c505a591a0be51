"""The engine as a service: one protocol-neutral `Service`, spoken to over HTTP and gRPC.

Importing this package imports no web framework; `http` and `grpc` do. Needs ``pip install "facefleet[server]"``.
"""

"""Logs. Never an image or an embedding in them."""

from facefleet.telemetry.logs import configure_logging

__all__ = ["configure_logging"]

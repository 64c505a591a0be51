"""What a running facefleet tells: logs, spans, metrics, device loads, status files. Never an image or an embedding.

Importing this package imports nothing heavy and starts no thread: `record` (prometheus-client) and `devices` (NVML) are
imported by who uses them.
"""

from facefleet.telemetry.logs import InferenceLog, configure_logging, request
from facefleet.telemetry.spans import current, span

__all__ = ["InferenceLog", "configure_logging", "current", "request", "span"]

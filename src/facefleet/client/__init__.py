"""Clients of a facefleet server: `Client` and `AsyncClient`, one logic. Needs ``pip install "facefleet[client]"``.

Imports nothing of the pipeline: no network, no model, no decoder.
"""

from facefleet.client.asynchronous import AsyncClient
from facefleet.client.blocking import Client
from facefleet.client.logic import Retries
from facefleet.client.shared import Progress
from facefleet.client.values import Face, Gallery, Item, Match, Picture, Verdict

__all__ = [
    "AsyncClient",
    "Client",
    "Face",
    "Gallery",
    "Item",
    "Match",
    "Picture",
    "Progress",
    "Retries",
    "Verdict",
]

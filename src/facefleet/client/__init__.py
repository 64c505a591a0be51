"""Clients of a facefleet server: `Client` and `AsyncClient`, one logic. Needs ``pip install "facefleet[client]"``.

Imports nothing of the pipeline: no network, no model, no decoder.
"""

from facefleet.client.clients import AsyncClient, Client
from facefleet.client.values import Face, Item, Picture, Verdict

__all__ = ["AsyncClient", "Client", "Face", "Item", "Picture", "Verdict"]

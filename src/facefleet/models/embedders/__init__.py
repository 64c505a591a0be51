"""Embedders: aligned chips in, vectors out."""

from facefleet.models.embedders.embedder import Embedder

__all__ = ["Embedder"]

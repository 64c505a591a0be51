"""Faces of pictures that were analyzed before: by digest of the picture and fingerprint of the pipeline.

Owns the cache and the engine that looks into it first. Refuses to know networks: it wraps whatever has the calls of
an engine (`Submitter`). A cache that is damaged or full is gone on without.
"""

from facefleet.cache.engine import CachedEngine, Submitter
from facefleet.cache.open import open_cache
from facefleet.cache.store import CacheStats, FeatureCache

__all__ = ["CacheStats", "CachedEngine", "FeatureCache", "Submitter", "open_cache"]

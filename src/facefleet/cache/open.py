"""From settings to a cache."""

from __future__ import annotations

from pathlib import Path

from facefleet.cache.store import FeatureCache
from facefleet.config import CacheSettings


def open_cache(settings: CacheSettings) -> FeatureCache | None:
    """The cache of `settings.path`: a file, or a Redis server by URI; None where none is named.

    Raises:
        CacheError: It cannot be used.
        BackendUnavailableError: A library is missing.
    """
    if not settings.path:
        return None
    if settings.path.startswith(("redis://", "rediss://")):
        from facefleet.cache.redis import RedisCache

        return RedisCache(settings.path)
    from facefleet.cache.store import SqliteCache

    return SqliteCache(Path(settings.path), settings.max_bytes)

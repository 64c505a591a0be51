"""The cache in a Redis server, for several machines: eviction is the server's (``maxmemory-policy allkeys-lru``).

Safe in any thread: so is the client.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

from facefleet.cache.store import FeatureCache
from facefleet.errors import BackendUnavailableError, CacheError

_PREFIX = b"facefleet:faces:"
_CLAIM = b"facefleet:claim:"
_CLAIM_S = 60
_TIMEOUT_S = 2.0


class RedisCache(FeatureCache):
    """See this module.

    Args:
        uri: ``redis://`` or ``rediss://`` with host, port and database.
        client: Instead of one made from `uri`.

    Raises:
        BackendUnavailableError: The client library is not installed.
        CacheError: The server does not answer.
    """

    def __init__(self, uri: str, client: Any = None) -> None:  # noqa: ANN401  # redis is an extra
        self._uri = uri
        self._owner = f"{os.uname().nodename}-{os.getpid()}-{time.time_ns()}".encode()
        if client is None:
            try:
                import redis
            except ImportError as error:
                raise BackendUnavailableError(
                    "the Redis client is not installed", hint='pip install "facefleet[redis]"'
                ) from error
            client = redis.Redis.from_url(uri, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)
        self._client = client
        with self._mapped():
            self._client.ping()

    def close(self) -> None:
        """See `FeatureCache.close`."""
        with contextlib.suppress(Exception):
            self._client.close()

    def get(self, key: bytes) -> bytes | None:
        """See `FeatureCache.get`; the server notes the use."""
        with self._mapped():
            data = self._client.get(_PREFIX + key)
        return None if data is None else bytes(data)

    def put(self, key: bytes, data: bytes) -> None:
        """See `FeatureCache.put`."""
        with self._mapped():
            self._client.set(_PREFIX + key, data)
            self._client.delete(_CLAIM + key)

    def claim(self, key: bytes) -> bool:
        """See `FeatureCache.claim`."""
        with self._mapped():
            if self._client.set(_CLAIM + key, self._owner, nx=True, ex=_CLAIM_S):
                return True
            return bool(self._client.get(_CLAIM + key) == self._owner)

    def release(self, key: bytes) -> None:
        """See `FeatureCache.release`."""
        with self._mapped():
            if self._client.get(_CLAIM + key) == self._owner:
                self._client.delete(_CLAIM + key)

    def held(self) -> tuple[int, int, int]:
        """See `FeatureCache.held`; of the whole server."""
        with self._mapped():
            facts = self._client.info()
            return int(self._client.dbsize()), int(facts.get("used_memory", 0)), int(facts.get("evicted_keys", 0))

    @contextlib.contextmanager
    def _mapped(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # the library's own tree, which is an extra
            raise CacheError(f"{self._uri.split('@')[-1]}: {error}", hint="is the Redis server up?") from error

"""API keys: who may do what.

Keys are random and have 256 bits, so one SHA-256 of each is what the file holds: it need not be slow, since there is
nothing to guess. Comparing takes the same time whatever is presented. Without a key file everybody may do everything,
and the server binds to loopback only.

The key file is TOML::

    [keys.camera-7]
    sha256 = "..."            # of the key
    scopes = ["read"]         # read, enrol, admin
    images_per_s = 50         # optional
    images_per_day = 100000   # optional

Owns no network; read once at start and again on reload.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import re
import secrets
import time
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from facefleet.errors import ConfigError, ForbiddenError, RateLimitError, UnauthorizedError
from facefleet.server.limits import Quota, Rate

Scope: TypeAlias = Literal["read", "enrol", "admin"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_PREFIX = "ff_"
_MAX_KEY = 256


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks.

    Attributes:
        name: Of the key; None: nobody in particular.
        scopes: What is allowed.
        rate: How often; None: no limit.
        quota: How many a day; None: no limit.
    """

    def take(self, images: int = 1) -> None:
        """Count pictures against rate and quota; 0: whether any more could be sent now.

        Raises:
            RateLimitError: Too many; says when to come again.
        """
        if self.rate is not None:
            self.rate.take(images)
        if self.quota is not None:
            self.quota.take(images)

    async def pace(self) -> None:
        """As `take` of one picture, but wait for the rate.

        Raises:
            RateLimitError: The quota is used up.
        """
        if self.quota is not None:
            self.quota.take()
        while self.rate is not None:
            try:
                self.rate.take()
                return
            except RateLimitError as error:
                await asyncio.sleep(error.retry_after_s)

    name: str | None
    scopes: frozenset[Scope]
    rate: Rate | None = field(default=None, compare=False)
    quota: Quota | None = field(default=None, compare=False)

    def need(self, scope: Scope) -> None:
        """Check a scope.

        Raises:
            ForbiddenError: It is not granted.
        """
        if scope not in self.scopes:
            raise ForbiddenError(f"this needs the scope {scope}", hint="use a key that has it")


ANYBODY = Caller(None, frozenset(SCOPES))


class Keys:
    """The keys of a file.

    Args:
        callers: sha256 of a key in hexadecimal -> who has it. Empty: nobody needs a key.
    """

    def __init__(self, callers: Mapping[str, Caller]) -> None:
        self._callers = dict(callers)

    @property
    def required(self) -> bool:
        """Whether a key is needed."""
        return bool(self._callers)

    def caller(self, presented: str | None) -> Caller:
        """Who has this key.

        Raises:
            UnauthorizedError: There is none, or it is not known.
        """
        if not self._callers:
            return ANYBODY
        hint = "send Authorization: Bearer KEY, or x-api-key: KEY"
        if not presented:
            raise UnauthorizedError("an API key is needed", hint=hint)
        digest = _digest(presented[:_MAX_KEY])
        found: Caller | None = None
        for known, caller in self._callers.items():  # all of them, so that time tells nothing
            if hmac.compare_digest(known, digest):
                found = caller
        if found is None:
            raise UnauthorizedError("this API key is not known", hint=hint)
        return found


def load_keys(path: Path) -> Keys:
    """Read a key file.

    Raises:
        ConfigError: It cannot be read, holds no key, or is malformed.
    """
    try:
        tree = tomllib.loads(path.read_text())
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}", hint="check --keys") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    entries = tree.get("keys")
    if not isinstance(entries, dict) or not entries or set(tree) != {"keys"}:
        raise ConfigError(f"{path}: holds no [keys.NAME]", hint="`facefleet keys add NAME` writes one")
    return Keys(dict(_entry(path, name, entry) for name, entry in entries.items()))


def _entry(path: Path, name: str, entry: Any) -> tuple[str, Caller]:  # noqa: ANN401  # TOML
    where = f"{path}: keys.{name}"
    if not isinstance(entry, dict) or set(entry) - {"sha256", "scopes", "images_per_s", "images_per_day"}:
        raise ConfigError(f"{where}: takes sha256, scopes, images_per_s and images_per_day only")
    digest, scopes, rate = entry.get("sha256"), entry.get("scopes"), entry.get("images_per_s")
    if not isinstance(digest, str) or not re.fullmatch(r"[0-9a-f]{64}", digest):
        raise ConfigError(f"{where}.sha256: not 64 hexadecimal digits", hint="`facefleet keys add` writes them")
    if not isinstance(scopes, list) or not scopes or not all(scope in SCOPES for scope in scopes):
        raise ConfigError(f"{where}.scopes={scopes!r}", hint=f"a list of {', '.join(SCOPES)}")
    if rate is not None and (not isinstance(rate, (int, float)) or isinstance(rate, bool) or not rate > 0):
        raise ConfigError(f"{where}.images_per_s={rate!r}", hint="a number above 0")
    daily = entry.get("images_per_day")
    if daily is not None and (type(daily) is not int or daily < 1):
        raise ConfigError(f"{where}.images_per_day={daily!r}", hint="a whole number above 0")
    limiter = None if rate is None else Rate(float(rate), time.monotonic)
    quota = None if daily is None else Quota(daily, time.time)
    return digest, Caller(name, frozenset(scopes), limiter, quota)


def add_key(
    path: Path,
    name: str,
    scopes: tuple[Scope, ...],
    images_per_s: float | None = None,
    images_per_day: int | None = None,
) -> str:
    """Make a key and add its digest to a file, which is made when it is not there, readable by its owner only.

    Returns:
        The key. It is nowhere else: who loses it needs another one.

    Raises:
        ConfigError: The name is malformed or taken, or the file cannot be used.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(f"name of a key {name!r}", hint="letters, digits, '.', '_' and '-'")
    key = _PREFIX + secrets.token_urlsafe(32)
    text = path.read_text() if path.exists() else ""
    lines = [f'[keys."{name}"]', f'sha256 = "{_digest(key)}"', f"scopes = {list(scopes)!r}".replace("'", '"')]
    if images_per_s is not None:
        lines.append(f"images_per_s = {images_per_s!r}")
    if images_per_day is not None:
        lines.append(f"images_per_day = {images_per_day!r}")
    added = (text.rstrip("\n") + "\n\n" if text.strip() else "") + "\n".join(lines) + "\n"
    try:
        tree = tomllib.loads(added)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: there is a key {name!r}, or the file is malformed: {error}") from error
    _entry(path, name, tree["keys"][name])
    temporary = path.with_name(path.name + ".new")
    temporary.touch(mode=0o600)
    temporary.write_text(added)
    temporary.replace(path)
    return key


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()

"""Where the server listens, and what it refuses to open to everybody."""

from __future__ import annotations

from dataclasses import dataclass

from facefleet.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where and how.

    Attributes:
        host: Address of the front.
        port: Its port; 0: any.
        uds: Path of a unix socket instead.
        ops_host: Address of the operator's lane.
        ops_port: Its port; None: there is none.
        certfile: TLS certificate chain, PEM.
        keyfile: Its key.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    ops_host: str = "127.0.0.1"
    ops_port: int | None = 8002
    certfile: str | None = None
    keyfile: str | None = None

    def check(self, *, keyed: bool) -> None:
        """Refuse what would be open to everybody.

        Raises:
            ConfigError: An address beyond this machine without a key, or half of TLS.
        """
        if not keyed and self.uds is None and not loopback(self.host):
            raise ConfigError(
                f"host {self.host} without an API key", hint="make one with `facefleet keys add NAME`, and give --keys"
            )
        if (self.certfile is None) != (self.keyfile is None):
            raise ConfigError("TLS needs both, a certificate and its key", hint="give --tls-cert and --tls-key")


def loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    return host in ("localhost", "::1") or host.startswith("127.")

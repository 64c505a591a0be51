"""``facefleet serve``: the engine as a service; ``facefleet keys``: who may use it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from facefleet.cli import options
from facefleet.cli.exits import Exit, command, say
from facefleet.errors import BackendUnavailableError, ConfigError
from facefleet.telemetry import configure_logging

if TYPE_CHECKING:
    from facefleet.config import Loaded, Settings
    from facefleet.server.serve import Serving

_LISTEN, _LIMITS = "Listening", "Limits"
_NICENESS = 5
"""Health and refusals stay quick while all processors compute."""


@command
def serve(
    host: Annotated[
        str, typer.Option(help="Address; beyond this machine only with --keys.", rich_help_panel=_LISTEN)
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="HTTP port; 0: any.", rich_help_panel=_LISTEN)] = 8000,
    grpc_port: Annotated[int, typer.Option(help="gRPC port; 0: any, -1: none.", rich_help_panel=_LISTEN)] = 8001,
    ops_host: Annotated[
        str, typer.Option(help="Address of health, metrics and reload.", rich_help_panel=_LISTEN)
    ] = "127.0.0.1",
    ops_port: Annotated[
        int, typer.Option(help="Port of health, metrics and reload; 0: any, -1: none.", rich_help_panel=_LISTEN)
    ] = 8002,
    uds: Annotated[str | None, typer.Option(help="Unix socket instead of a port.", rich_help_panel=_LISTEN)] = None,
    keys: Annotated[
        Path | None, typer.Option(help="File of API keys, as `facefleet keys add` writes it.", rich_help_panel=_LISTEN)
    ] = None,
    galleries: Annotated[
        Path | None, typer.Option(help="Folder of galleries; without it there are none.", rich_help_panel=_LISTEN)
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain, PEM.", rich_help_panel=_LISTEN)] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its key, PEM.", rich_help_panel=_LISTEN)] = None,
    max_image_bytes: Annotated[int, typer.Option(min=1, help="Most bytes a picture.", rich_help_panel=_LIMITS)] = 32
    << 20,
    max_images: Annotated[int, typer.Option(min=1, help="Most pictures a request.", rich_help_panel=_LIMITS)] = 256,
    max_requests: Annotated[int, typer.Option(min=1, help="Most requests inside.", rich_help_panel=_LIMITS)] = 1024,
    fetch_urls: Annotated[
        list[str] | None,
        typer.Option(
            help="Fetch pictures by URLs of this scheme, https or http, from public addresses; repeat for both. "
            "Default: none are fetched.",
            rich_help_panel=_LIMITS,
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.001, help="Seconds of a request that names no deadline.", rich_help_panel=_LIMITS)
    ] = 30.0,
    drain: Annotated[float, typer.Option(min=0, help="Seconds to finish what is inside at the end.")] = 30.0,
    in_process: Annotated[
        bool, typer.Option("--in-process", help="Run a single device in this process, not in one of its own.")
    ] = False,
    niceness: Annotated[
        int | None,
        typer.Option(
            min=0,
            max=19,
            help="How far the engine's processes step back for those that answer; 5 where nothing says so.",
        ),
    ] = None,
    pack: options.Pack = None,
    backend: options.Backend = None,
    devices: options.Devices = None,
    precision: options.Precision = None,
    threads: options.Threads = None,
    det_size: options.DetSize = None,
    score: options.Score = None,
    sets: options.Set = None,
    config: options.Config = None,
    profile: options.Profile = None,
    verbose: options.Verbose = False,
    log_format: options.LogFormat = "human",
) -> Exit:
    """Serve faces over HTTP and gRPC.

    SIGTERM ends it without losing a request; SIGHUP reads settings and pack again.
    """
    configure_logging(verbose=verbose, format=options.log_format(log_format))
    try:
        from facefleet.server.auth import Keys, load_keys
        from facefleet.server.fetch import Fetcher
        from facefleet.server.galleries import Galleries
        from facefleet.server.limits import Limits
        from facefleet.server.listen import Listen
        from facefleet.server.serve import Server
        from facefleet.server.serve import serve as run
        from facefleet.server.service import Service
    except ImportError as error:
        raise BackendUnavailableError(
            f"the server needs {error.name}", hint='pip install "facefleet[server]"'
        ) from error
    from facefleet.pipeline import Engine

    def settings() -> Settings:
        loaded = options.effective(
            config=config,
            sets=sets,
            det_size=det_size,
            profile=profile,
            pack=pack,
            runtime__backend=backend,
            runtime__devices=devices,
            runtime__isolated=None if in_process else True,
            runtime__niceness=niceness,
            runtime__precision=precision,
            runtime__threads=threads,
            detect__score=score,
        )
        return stepping_back(loaded)

    listen = Listen(
        host=host,
        port=port,
        uds=uds,
        ops_host=ops_host,
        ops_port=None if ops_port < 0 else ops_port,
        certfile=None if tls_cert is None else str(tls_cert),
        keyfile=None if tls_key is None else str(tls_key),
    )
    known = Keys({}) if keys is None else load_keys(keys)
    listen.check(keyed=known.required)
    limits = Limits(
        max_image_bytes=max_image_bytes, max_images=max_images, max_requests=max_requests, timeout_s=timeout
    )
    service = Service(Engine(settings()), limits, reread=settings)
    if galleries is not None and not galleries.is_dir():
        raise ConfigError(f"--galleries {galleries}: no such folder", hint="make it first")
    server = Server(
        service,
        known,
        listen,
        grpc_port=None if grpc_port < 0 else grpc_port,
        galleries=Galleries(galleries),
        fetcher=Fetcher(fetch_urls, max_bytes=max_image_bytes) if fetch_urls else None,
        drain_s=drain,
    )
    asyncio.run(run(server, started=_say))
    return Exit.DONE


def stepping_back(loaded: Loaded) -> Settings:
    """The settings, with the niceness of a server's engine where nobody set one."""
    settings = loaded.settings
    if loaded.origins["runtime.niceness"] != "default":
        return settings
    return replace(settings, runtime=replace(settings.runtime, niceness=_NICENESS))


def _say(serving: Serving) -> None:
    def shown(address: object) -> str:
        return f"{address[0]}:{address[1]}" if isinstance(address, tuple) else str(address)

    say(f"ready: http {shown(serving.http)}")
    if serving.grpc_port is not None:
        say(f"ready: grpc port {serving.grpc_port}")
    if serving.ops is not None:
        say(f"ready: health and metrics {shown(serving.ops)}")


keys_app = typer.Typer(no_args_is_help=True)


@keys_app.callback()
def _keys() -> None:
    """API keys of the server."""


@keys_app.command("add")
@command
def add(
    name: Annotated[str, typer.Argument(help="Whose it is.")],
    file: Annotated[Path, typer.Option("--file", "-f", help="Key file; made when missing.")] = Path("keys.toml"),
    scope: Annotated[list[str] | None, typer.Option(help="read, enrol or admin; repeat for several.")] = None,
    images_per_s: Annotated[float | None, typer.Option(help="Most pictures a second.")] = None,
    images_per_day: Annotated[int | None, typer.Option(help="Most pictures a day.")] = None,
) -> Exit:
    """Make a key and print it, this once; the file holds its digest only."""
    from facefleet.server.auth import SCOPES, add_key

    wanted = tuple(known for known in SCOPES if known in (scope or ["read"]))
    if set(scope or ()) - set(SCOPES):
        raise ConfigError(f"--scope {' '.join(scope or ())}", hint=f"choose from {', '.join(SCOPES)}")
    print(add_key(file, name, wanted, images_per_s, images_per_day))
    return Exit.DONE

"""The application: its commands, and what holds for all of them.

Commands are imported when they are called, so that ``--help`` is quick.
"""

from __future__ import annotations

from typing import Annotated

import typer

from facefleet import __version__
from facefleet.cli import (
    bench,
    build,
    cluster,
    config,
    convert,
    doctor,
    engines,
    extract,
    gallery,
    inspect,
    models,
    search,
    serve,
    top,
    tune,
    verify,
)

_EPILOG = "Exit codes: 0 done, 1 some inputs failed or a problem was found, 2 usage, 3 nothing could be done."

app = typer.Typer(
    name="facefleet",
    help="Photos in, faces out: detected, aligned, embedded.",
    epilog=_EPILOG,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("extract", epilog=_EPILOG)(extract.extract)
app.command("verify", epilog=_EPILOG)(verify.verify)
app.command("serve", epilog=_EPILOG)(serve.serve)
app.command("search", epilog=_EPILOG)(search.search)
app.command("cluster", epilog=_EPILOG)(cluster.cluster)
app.command("inspect", epilog=_EPILOG)(inspect.inspect)
app.command("convert", epilog=_EPILOG)(convert.convert)
app.command("build", epilog=_EPILOG)(build.build)
app.command("doctor", epilog=_EPILOG)(doctor.doctor)
app.command("tune", epilog=_EPILOG)(tune.tune)
app.command("top", epilog=_EPILOG)(top.top)
app.add_typer(models.app, name="models", help="Model packs: list, install, show, verify, add.")
app.add_typer(serve.keys_app, name="keys", help="API keys of the server.")
app.add_typer(gallery.app, name="gallery", help="Known people: enrol, identify, verify, erase.")
app.add_typer(engines.app, name="engines", help="Built engines: list, verify, prune.")
app.add_typer(config.app, name="config", help="Settings: show what is in effect.")
app.add_typer(bench.app, name="bench", help="Measure.")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"facefleet {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    del version


def main() -> None:
    """Run the command line."""
    app()

"""``facefleet gallery``: make and keep galleries of known people."""

from __future__ import annotations

import json
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from facefleet.cli import gallery_enrol, gallery_models, gallery_search, options
from facefleet.cli import gallery_options as shared
from facefleet.cli.exits import Exit, command, say
from facefleet.errors import ConfigError
from facefleet.telemetry import configure_logging

if TYPE_CHECKING:
    pass

app = typer.Typer(no_args_is_help=True)
app.command("enrol")(gallery_enrol.enrol)
app.command("identify")(gallery_search.identify)
app.command("verify")(gallery_search.verify)
app.command("calibrate")(gallery_models.calibrate)
app.command("reembed")(gallery_models.reembed)


@app.command()
@command
def create(
    folder: shared.Folder,
    index: Annotated[str, typer.Option(help="flat, faiss, flat-cuda or milvus.")] = "flat",
    index_options: Annotated[
        list[str] | None, typer.Option("--index-option", help="KEY=VALUE, e.g. type=hnsw, recall=0.98, uri=http://...")
    ] = None,
    keep_chips: Annotated[
        bool, typer.Option("--keep-chips", help="Store aligned faces, so that another model can embed them later.")
    ] = False,
    actor: shared.Actor = None,
    pack: options.Pack = None,
    backend: options.Backend = None,
    devices: options.Devices = None,
    precision: options.Precision = None,
    det_size: options.DetSize = None,
    score: options.Score = None,
    sets: options.Set = None,
    config: options.Config = None,
    verbose: options.Verbose = False,
) -> Exit:
    """Make an empty gallery for the embeddings of one pack and its options."""
    configure_logging(verbose=verbose)
    loaded = options.effective(
        config=config,
        sets=sets,
        det_size=det_size,
        pack=pack,
        runtime__backend=backend,
        runtime__devices=devices,
        runtime__precision=precision,
        detect__score=score,
    )
    from facefleet.gallery import Gallery
    from facefleet.pipeline import Engine

    values = {}
    for text in index_options or ():
        key, sign, value = text.partition("=")
        if not sign:
            raise ConfigError(f"--index-option {text!r}", hint="write KEY=VALUE")
        values[key] = shared.json_or_text(value)
    with Engine(loaded.settings) as engine:
        identity = shared.identity_of(engine)
    Gallery.create(folder, identity, index=index, options=values, keep_chips=keep_chips, actor=actor).close()
    say(f"{folder}: a gallery for pack {identity.description['pack']}, {identity.dimension} dimensions, index {index}")
    return Exit.DONE


@app.command("list")
@command
def list_people(folder: shared.Folder, where: shared.Where = None, as_json: shared.Json = False) -> Exit:
    """Everybody in a gallery; or, of a folder that is none, the galleries in it."""
    from facefleet.gallery import galleries
    from facefleet.gallery.database import FILE

    if folder.is_dir() and not (folder / FILE).exists() and (found := galleries(folder)):
        for path in found:
            print(path)
        return Exit.DONE
    with shared.open_gallery(folder) as gallery:
        people = gallery.people(shared.filter_of(where))
    if as_json:
        print(json.dumps([asdict(person) for person in people], ensure_ascii=False))
        return Exit.DONE
    rows = [(p.id, p.name, p.samples, json.dumps(dict(p.metadata), ensure_ascii=False)) for p in people]
    shared.print_table(("id", "name", "samples", "metadata"), rows)
    return Exit.DONE


@app.command()
@command
def show(folder: shared.Folder, who: shared.Who, as_json: shared.Json = False) -> Exit:
    """Somebody: samples with their quality, and what was changed when by whom."""
    with shared.open_gallery(folder) as gallery:
        person = gallery.person(shared.person_of(who))
        samples = gallery.samples(person.id)
        changes = gallery.history(person.id)
    facts = [
        {"sample": s.id, **{k: round(v, 1) for k, v in s.quality.items()}, "chip": bool(s.chip_png), "source": s.source}
        for s in samples
    ]
    if as_json:
        history = [asdict(change) for change in changes]
        print(json.dumps({**asdict(person), "samples": facts, "history": history}, ensure_ascii=False))
        return Exit.DONE
    print(f"{person.id}  {person.name}  {json.dumps(dict(person.metadata), ensure_ascii=False)}")
    if facts:
        shared.print_table(list(facts[0]), [[str(fact.get(key, "")) for key in facts[0]] for fact in facts])
    rows = [(_time(c.at_s), c.who, c.action, c.samples, json.dumps(dict(c.detail))) for c in changes]
    shared.print_table(("when", "who", "what", "samples", "detail"), rows)
    return Exit.DONE


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


@app.command()
@command
def update(
    folder: shared.Folder,
    who: shared.Who,
    name: Annotated[str | None, typer.Option(help="Another name.")] = None,
    metadata: Annotated[str | None, typer.Option(help="Other metadata, a JSON object.")] = None,
    merge: Annotated[str | None, typer.Option(help="Somebody who is the same person, and becomes this one.")] = None,
    actor: shared.Actor = None,
) -> Exit:
    """Rename somebody, replace the metadata, or merge another person into this one."""
    with shared.open_gallery(folder, actor) as gallery:
        person = gallery.person(shared.person_of(who)).id
        if name is None and metadata is None and merge is None:
            raise ConfigError("nothing to change", hint="--name, --metadata or --merge")
        if merge is not None:
            say(f"{gallery.merge(person, shared.person_of(merge))} samples moved to person {person}")
        if name is not None:
            gallery.rename(person, name)
        if metadata is not None:
            gallery.update(person, shared.object_of(metadata))
    return Exit.DONE


@app.command()
@command
def erase(
    folder: shared.Folder,
    who: Annotated[list[str], typer.Argument(help="Ids, or names that only one has.", show_default=False)],
    actor: shared.Actor = None,
    as_json: shared.Json = False,
) -> Exit:
    """Remove people everywhere, and look whether anything is left. Exports made before are not touched."""
    with shared.open_gallery(folder, actor) as gallery:
        people = [gallery.person(shared.person_of(each)).id for each in who]
        results = [gallery.erase(person) for person in people]
    if as_json:
        print(json.dumps([asdict(result) for result in results]))
    for result in results:
        say(
            f"person {result.person}: {result.samples} samples and {result.snapshots} snapshots removed, "
            f"{result.files_scanned} files searched, nothing left"
        )
    return Exit.DONE


@app.command("export")
@command
def export(folder: shared.Folder, output: Annotated[Path, typer.Argument(help="Parquet file to write.")]) -> Exit:
    """Write people and samples to a Parquet file."""
    from facefleet.gallery.exchange import export_gallery

    with shared.open_gallery(folder) as gallery:
        people, samples = export_gallery(gallery, output)
    say(f"{output}: {people} people, {samples} samples")
    return Exit.DONE


@app.command("import")
@command
def import_(
    folder: shared.Folder,
    source: Annotated[Path, typer.Argument(help="Parquet file of `gallery export`.")],
    restore_erased: Annotated[bool, typer.Option("--restore-erased", help="Bring back people erased here.")] = False,
    index: Annotated[str, typer.Option(help="Index of a gallery that is made here.")] = "flat",
    actor: shared.Actor = None,
) -> Exit:
    """Add what an export holds; a gallery that is not there yet is made."""
    from facefleet.gallery import Gallery
    from facefleet.gallery.database import FILE
    from facefleet.gallery.exchange import import_gallery, read_identity

    if not (folder / FILE).exists():
        _, identity = read_identity(source)
        Gallery.create(folder, identity, index=index, actor=actor).close()
    with shared.open_gallery(folder, actor) as gallery:
        result = import_gallery(gallery, source, restore_erased=restore_erased)
    ids = "ids kept" if result.kept_ids else "new ids"
    say(f"{result.people} people and {result.samples} samples added ({ids}), {result.known} samples known before")
    if result.erased:
        say(f"{result.erased} people were erased here and stay so; --restore-erased brings them back")
    return Exit.DONE


@app.command()
@command
def check(folder: shared.Folder, as_json: shared.Json = False) -> Exit:
    """Whether everything that is stored is what was written. Ends with 1 when it is not."""
    from facefleet.gallery.check import check_gallery

    with shared.open_gallery(folder) as gallery:
        report = check_gallery(gallery)
    if as_json:
        print(json.dumps(asdict(report)))
    for problem in report.problems:
        say(f"problem: {problem}")
    say(
        f"{report.people} people, {report.samples} samples, {report.snapshots} snapshots: "
        f"{'all as written' if not report.problems else f'{len(report.problems)} problems'}"
    )
    return Exit.SOME_FAILED if report.problems else Exit.DONE


@app.command()
@command
def stats(folder: shared.Folder, as_json: shared.Json = False) -> Exit:
    """What a gallery is made with, and how large it is."""
    from facefleet.gallery.check import statistics

    with shared.open_gallery(folder) as gallery:
        facts = statistics(gallery)
    if as_json:
        print(json.dumps(facts, ensure_ascii=False))
        return Exit.DONE
    rows = [(key, json.dumps(value) if isinstance(value, dict) else str(value)) for key, value in facts.items()]
    shared.print_table(("what", "value"), rows)
    return Exit.DONE

"""``facefleet gallery identify`` and ``verify``: who is this, and is it really they?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from facefleet.cli import gallery_options as shared
from facefleet.cli import options
from facefleet.cli.exits import Exit, command, one_of, say
from facefleet.telemetry import configure_logging

if TYPE_CHECKING:
    from facefleet.gallery import Gallery, Match
    from facefleet.types import FaceRecord

_Scoring = Annotated[str, typer.Option(help="How a person with several samples is scored: best or mean.")]


@command
def identify(
    folder: shared.Folder,
    pictures: Annotated[list[str], typer.Argument(help="Files, folders, globs or archives.")],
    k: Annotated[int, typer.Option("-k", help="Most people a face.", min=1)] = 1,
    threshold: shared.Threshold = None,
    where: shared.Where = None,
    scoring: _Scoring = "best",
    as_json: shared.Json = False,
    sheet: Annotated[Path | None, typer.Option(help="Contact sheet to write: each face with its matches.")] = None,
    pack: options.Pack = None,
    backend: options.Backend = None,
    devices: options.Devices = None,
    precision: options.Precision = None,
    sets: options.Set = None,
    config: options.Config = None,
    verbose: options.Verbose = False,
) -> Exit:
    """Name every face of the pictures.

    Ends with 0 whoever is found or not; with 1 when a picture could not be read.
    """
    configure_logging(verbose=verbose)
    one_of("--scoring", scoring, ("best", "mean"))
    from facefleet.sources import Inputs
    from facefleet.types import FaceStatus

    condition = shared.filter_of(where)
    failed = 0
    entries: list[dict[str, Any]] = []
    tiles: list[tuple[FaceRecord, str, list[Match]]] = []
    with (
        shared.open_gallery(folder) as gallery,
        shared.engine_of(
            gallery, pack=pack, backend=backend, devices=devices, precision=precision, sets=sets, config=config
        ) as engine,
    ):
        keys: list[str] = []

        def opened() -> Any:  # noqa: ANN401  # an iterator of pictures
            for item in Inputs(pictures):
                keys.append(item.key)
                yield item.open()

        for index, outcome in enumerate(engine.map(opened(), chips=sheet is not None)):
            key = keys[index]
            if not outcome.ok:
                say(f"error: {key}: {outcome.error}")
                failed += 1
                continue
            faces = [face for face in outcome.unwrap() if face.status is FaceStatus.OK]
            if not faces:
                say(f"{key}: no face")
                continue
            answers = gallery.identify(
                [face.embedding for face in faces],
                fingerprint=engine.fingerprint,
                k=k,
                threshold=threshold,
                where=condition,
                scoring=scoring,  # type: ignore[arg-type]
            )
            for face, answer in zip(faces, answers, strict=True):
                box = [round(float(value), 1) for value in face.box]
                matches = [_as_json(match) for match in answer]
                entries.append({"picture": key, "face": face.index, "box": box, "matches": matches, "metric": "cosine"})
                tiles.append((face, key, answer))
        if sheet is not None:
            _write_sheet(gallery, sheet, tiles)
    if as_json:
        print(json.dumps(entries, ensure_ascii=False))
    else:
        _print(entries)
    return Exit.SOME_FAILED if failed else Exit.DONE


def _as_json(match: Match) -> dict[str, Any]:
    values = asdict(match)
    values["score"] = round(match.score, 6)
    if match.probability is None:
        del values["probability"]
    return values


def _print(entries: list[dict[str, Any]]) -> None:
    rows: list[tuple[object, ...]] = []
    calibrated = any("probability" in match for entry in entries for match in entry["matches"])
    for entry in entries:
        for match in entry["matches"]:
            row = (entry["picture"], entry["face"], match["person"], match["name"], match["score"])
            rows.append((*row, match["probability"]) if calibrated else row)
        if not entry["matches"]:
            rows.append((entry["picture"], entry["face"], "", "unknown", "") + (("",) if calibrated else ()))
    titles = ("picture", "face", "id", "name", "cosine") + (("probability",) if calibrated else ())
    shared.print_table(titles, rows)


def _write_sheet(gallery: Gallery, path: Path, found: list[tuple[FaceRecord, str, list[Match]]]) -> None:
    import numpy as np

    from facefleet.decode import Decoder
    from facefleet.gallery.chips import decode_chip
    from facefleet.gallery.contact_sheet import Tile, cut_face, write_sheet

    decoder = Decoder()
    rows = []
    for face, key, answer in found:
        row = [Tile(face.chip, Path(key).name)]
        for match in answer:
            sample = next((s for s in gallery.samples(match.person) if match.sample in (None, s.id)), None)
            pixels = None
            if sample is not None and sample.chip_png is not None:
                pixels = decode_chip(sample.chip_png)
            elif sample is not None and sample.source is not None and sample.box is not None:
                pixels = cut_face(decoder, sample.source, np.array(sample.box, np.float32), None)
            row.append(Tile(pixels, f"{match.score:.2f} {match.name}", marked=True))
        rows.append(row)
    write_sheet(path, rows)
    say(f"contact sheet: {path}")


@command
def verify(
    folder: shared.Folder,
    who: shared.Who,
    picture: Annotated[str, typer.Argument(help="A photo; its largest face counts.")],
    threshold: shared.Threshold = None,
    scoring: _Scoring = "best",
    as_json: shared.Json = False,
    pack: options.Pack = None,
    backend: options.Backend = None,
    devices: options.Devices = None,
    precision: options.Precision = None,
    sets: options.Set = None,
    config: options.Config = None,
    verbose: options.Verbose = False,
) -> Exit:
    """Compare the largest face of a photo with somebody in the gallery.

    Ends with 0 when the comparison was made, whatever its outcome; with 1 when the photo has no face.
    """
    configure_logging(verbose=verbose)
    one_of("--scoring", scoring, ("best", "mean"))
    from facefleet.gallery.enrol import choose_face

    with (
        shared.open_gallery(folder) as gallery,
        shared.engine_of(
            gallery, pack=pack, backend=backend, devices=devices, precision=precision, sets=sets, config=config
        ) as engine,
    ):
        face, reason = choose_face(engine.analyze(picture), "largest")
        if face is None:
            say(f"error: {picture}: {reason}")
            return Exit.SOME_FAILED
        person = gallery.person(shared.person_of(who))
        answer = gallery.verify(
            face.embedding,
            person.id,
            fingerprint=engine.fingerprint,
            threshold=threshold,
            scoring=scoring,  # type: ignore[arg-type]
        )
    if as_json:
        print(json.dumps(asdict(answer)))
    else:
        verdict = "is" if answer.same else "is not"
        chance = "" if answer.probability is None else f", probability {answer.probability:.4f}"
        print(f"{verdict} {person.name}: cosine {answer.score:.4f}, threshold {answer.threshold:.4f}{chance}")
    return Exit.DONE

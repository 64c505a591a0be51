"""``facefleet verify``: are two photos of the same person?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from facefleet.cli import options
from facefleet.cli.exits import Exit, command, say
from facefleet.telemetry import configure_logging

if TYPE_CHECKING:
    from facefleet.types import Faces

_HEIGHT_PX = 640


@command
def verify(
    first: Annotated[str, typer.Argument(help="A photo; its largest face counts.")],
    second: Annotated[str, typer.Argument(help="Another.")],
    threshold: Annotated[
        float | None, typer.Option(help="Least cosine for the same person; default: the pack's.")
    ] = None,
    draw: Annotated[Path | None, typer.Option(help="Write both photos with their faces, side by side.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    pack: options.Pack = None,
    backend: options.Backend = None,
    devices: options.Devices = None,
    precision: options.Precision = None,
    det_size: options.DetSize = None,
    score: options.Score = None,
    sets: options.Set = None,
    config: options.Config = None,
    profile: options.Profile = None,
    verbose: options.Verbose = False,
) -> Exit:
    """Compare the largest faces of two photos.

    Prints the verdict, the cosine and the threshold. Ends with 0 when the comparison was made, whatever its outcome;
    with 1 when a photo has no face to compare.
    """
    configure_logging(verbose=verbose)
    loaded = options.effective(
        config=config,
        sets=[*(sets or ()), "detect.order=area"],
        det_size=det_size,
        profile=profile,
        pack=pack,
        runtime__backend=backend,
        runtime__devices=devices,
        runtime__precision=precision,
        detect__score=score,
    )
    from facefleet.pipeline import Engine
    from facefleet.types import FaceStatus

    with Engine(loaded.settings) as engine:
        both = [engine.analyze(path) for path in (first, second)]
        limit = engine.manifest.embedder.threshold if threshold is None else threshold
    usable = [[face for face in faces if face.status is FaceStatus.OK] for faces in both]
    for path, faces, found in zip((first, second), both, usable, strict=True):
        if not found:
            say(f"error: {path}: no face to compare")
            say(f"hint: the best rejected detector score was {faces.best_rejected:.2f}; try --score or --det-size 128")
    if not all(usable):
        return Exit.SOME_FAILED
    cosine = usable[0][0].similarity(usable[1][0])
    same = cosine >= limit
    if as_json:
        print(json.dumps({"same": same, "cosine": round(cosine, 6), "threshold": limit, "metric": "cosine"}))
    else:
        print(f"{'same person' if same else 'different people'}: cosine {cosine:.4f}, threshold {limit:.4f}")
    if draw is not None:
        _draw(draw, (first, second), both, [found[0].index for found in usable])
        say(f"drawn: {draw}")
    return Exit.DONE


def _draw(target: Path, paths: tuple[str, str], both: list[Faces], chosen: list[int]) -> None:
    import cv2
    import numpy as np

    from facefleet.decode import Decoder
    from facefleet.errors import OutputError
    from facefleet.sinks import draw_faces

    decoder = Decoder()
    halves = []
    for path, faces, index in zip(paths, both, chosen, strict=True):
        drawn = draw_faces(decoder.decode(path).pixels, faces, highlight=index)
        width = max(1, round(drawn.shape[1] * _HEIGHT_PX / drawn.shape[0]))
        halves.append(cv2.resize(drawn, (width, _HEIGHT_PX), interpolation=cv2.INTER_AREA))
    suffix = target.suffix.lower() if target.suffix.lower() in (".png", ".jpg", ".jpeg", ".webp") else ".png"
    good, data = cv2.imencode(suffix, np.concatenate(halves, axis=1)[:, :, ::-1])
    assert good
    try:
        target.write_bytes(data.tobytes())
    except OSError as error:
        raise OutputError(f"{target}: cannot be written: {error}", hint="check the folder") from error

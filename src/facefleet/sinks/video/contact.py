"""A contact sheet: the best face of every person, with name, time and how long it was seen."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image as PILImage
from PIL import ImageDraw, ImageFont

from facefleet.sinks.video.rows import TrackRow

_CHIP, _GAP, _TEXT = 112, 10, 34
_COLUMNS = 8
_MOST = 400
_BACK, _INK, _FAINT = (250, 250, 248), (25, 25, 28), (110, 110, 115)


def contact_sheet(path: Path, folder: Path, tracks: Sequence[TrackRow]) -> int:
    """Write the sheet, as JPEG or PNG by the file's extension.

    Args:
        path: The new file.
        folder: What the chips' paths are relative to.
        tracks: The tracks; of each person the one seen longest is shown, those without a chip are left out.

    Returns:
        How many persons are on it; none, and there is no file.
    """
    by_person: dict[str, list[TrackRow]] = defaultdict(list)
    for track in tracks:
        if track.chip is not None:
            by_person[track.person].append(track)
    persons = sorted(by_person.items(), key=lambda pair: min(track.start_s for track in pair[1]))[:_MOST]
    if not persons:
        return 0
    columns = min(_COLUMNS, len(persons))
    rows = math.ceil(len(persons) / columns)
    cell = (_CHIP + _GAP, _CHIP + _GAP + _TEXT)
    sheet = PILImage.new("RGB", (columns * cell[0] + _GAP, rows * cell[1] + _GAP), _BACK)
    pen = ImageDraw.Draw(sheet)
    font, small = ImageFont.load_default(13), ImageFont.load_default(11)
    for number, (person, seen) in enumerate(persons):
        best = max(seen, key=lambda track: (track.faces, -track.track))
        left, top = _GAP + number % columns * cell[0], _GAP + number // columns * cell[1]
        with PILImage.open(folder / str(best.chip)) as chip:
            sheet.paste(chip.convert("RGB").resize((_CHIP, _CHIP)), (left, top))
        faces = sum(track.faces for track in seen)
        pen.text((left, top + _CHIP + 3), _fit(pen, person, font), _INK, font)
        pen.text((left, top + _CHIP + 19), f"{min(t.start_s for t in seen):.1f} s  {faces} faces", _FAINT, small)
    sheet.save(path, quality=92)
    return len(persons)


def _fit(pen: ImageDraw.ImageDraw, text: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont) -> str:
    if pen.textlength(text, font) <= _CHIP:
        return text
    lengths = [pen.textlength(text[:count] + "...", font) for count in range(len(text))]
    return text[: int(np.searchsorted(lengths, _CHIP, "right")) - 1] + "..."

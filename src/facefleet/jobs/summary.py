"""What a job did, in numbers that add up."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a job is.

    Attributes:
        done: Inputs finished in this run.
        kept: Inputs that a run before had finished.
        failed: Of `done`, those that failed.
        faces: Faces found in this run.
        seconds: Since the start.
    """

    done: int
    kept: int
    failed: int
    faces: int
    seconds: float


@dataclass(frozen=True, slots=True)
class JobSummary:
    """The result of a job.

    Attributes:
        inputs: Different inputs seen in this run.
        ok: Inputs with faces, from this run and runs before.
        no_face: Inputs without.
        failed_retryable: Inputs that may succeed if the job is run again.
        failed_permanent: Inputs that will not.
        faces: Faces in the output.
        processed: Inputs worked on in this run; the others were done before.
        duplicates: Inputs named more than once, beyond the first time.
        skipped: Files of folders and archives that were not taken.
        dropped: Inputs of runs before that this one did not name: not in the output any more.
        seconds: Duration of this run.
        errors: Error code -> inputs that failed with it.
        interrupted: Whether the job was stopped; run it again to go on.
        output: The table, complete unless interrupted.
        failures: The file that lists failed inputs with reasons; None if there are none.
    """

    inputs: int
    ok: int
    no_face: int
    failed_retryable: int
    failed_permanent: int
    faces: int
    processed: int
    duplicates: int
    skipped: int
    dropped: int
    seconds: float
    errors: dict[str, int] = field(default_factory=dict)
    interrupted: bool = False
    output: str = ""
    failures: str | None = None

    @property
    def failed(self) -> int:
        """Inputs that failed, either way."""
        return self.failed_retryable + self.failed_permanent

    @property
    def images_per_s(self) -> float:
        """Inputs worked on per second of this run."""
        return self.processed / self.seconds if self.seconds > 0 else 0.0

    def to_json(self) -> str:
        """As one JSON object."""
        return json.dumps({**asdict(self), "images_per_s": round(self.images_per_s, 2)}, ensure_ascii=False)

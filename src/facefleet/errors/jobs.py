"""A job as a whole."""

from __future__ import annotations

from facefleet.errors.base import FacefleetError


class JobError(FacefleetError):
    """A job as a whole cannot go on."""

    code = "job"


class OutputExistsError(JobError):
    """The output belongs to another job or to other settings."""

    code = "output_exists"


class OutputError(JobError):
    """The output cannot be written."""

    code = "output"

"""Jobs: every picture of a source through an engine into files, resumable at any moment."""

from facefleet.jobs.analyzer import Analyzer
from facefleet.jobs.manifest import Status
from facefleet.jobs.run import run_job
from facefleet.jobs.summary import JobSummary, Progress

__all__ = ["Analyzer", "JobSummary", "Progress", "Status", "run_job"]

"""How many processor threads this process may use: what the container allows, not what the host has."""

from __future__ import annotations

import math
import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")


def available_threads(cgroup: Path = _CGROUP, membership: Path = Path("/proc/self/cgroup")) -> int:
    """min(processors this process may run on, cgroup quota rounded up), at least 1.

    Args:
        cgroup: Where the cgroup file systems are mounted.
        membership: The file that names the groups of this process.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = cgroup_quota(cgroup, membership)
    return max(1, affinity if quota is None else min(affinity, math.ceil(quota)))


def cgroup_quota(cgroup: Path = _CGROUP, membership: Path = Path("/proc/self/cgroup")) -> float | None:
    """Processors that the cgroup (version 2 or 1) and its parents allow; None without a limit."""
    quotas = []
    for folder in _folders(cgroup, membership):
        try:
            if (folder / "cpu.max").exists():
                limit, period = (folder / "cpu.max").read_text().split()[:2]
            else:
                limit = (folder / "cpu.cfs_quota_us").read_text().strip()
                period = (folder / "cpu.cfs_period_us").read_text().strip()
            if limit not in ("max", "-1"):
                quotas.append(int(limit) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return min(quotas, default=None)


def _folders(cgroup: Path, membership: Path) -> list[Path]:
    """Folders of the groups that this process is in, innermost first, with every parent."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        lines = []
    folders = []
    for line in lines:
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if number == "0" and not controllers:
            root = cgroup
        elif "cpu" in controllers.split(","):
            root = cgroup / controllers if (cgroup / controllers).is_dir() else cgroup / "cpu"
        else:
            continue
        parts = [part for part in path.split("/") if part not in ("", "..")]
        folders += [root.joinpath(*parts[:depth]) for depth in range(len(parts), -1, -1)]
    return folders or [cgroup, cgroup / "cpu"]

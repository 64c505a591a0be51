"""The torch suite: skipped without torch, or failed where `FACEFLEET_REQUIRE` names torch."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator

import pytest

from tests.conftest import skip_without


@pytest.fixture(scope="session", autouse=True)
def _torch() -> Iterator[None]:
    if importlib.util.find_spec("torch") is None:
        skip_without("torch", 'torch is not installed: pip install "facefleet[torch]"')
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)

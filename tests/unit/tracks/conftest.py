"""All of these need the extra ``[video]``."""

from __future__ import annotations

import pytest

from tests.conftest import need_video


@pytest.fixture(autouse=True, scope="session")
def _video() -> None:
    need_video()

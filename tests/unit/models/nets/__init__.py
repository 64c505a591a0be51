"""Tests of the torch networks; they need the extra `[torch]`."""

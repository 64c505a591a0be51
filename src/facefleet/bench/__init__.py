"""Measuring: speed on photos of one's own, verification figures on labeled pairs."""

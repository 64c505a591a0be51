"""Networks as faces: detectors, embedders, and the preparation of their files."""

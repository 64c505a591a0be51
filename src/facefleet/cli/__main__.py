"""``python -m facefleet.cli``."""

from facefleet.cli.main import main

main()

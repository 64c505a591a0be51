"""Published face networks as torch modules, and the loading of their checkpoints. Needs the extra `[torch]`.

Importing this package imports no torch; loading a checkpoint does.
"""

from facefleet.models.nets.checkpoint import LoadedNetwork, load_checkpoint
from facefleet.models.nets.layouts import NETWORKS, NetworkSpec

__all__ = ["NETWORKS", "LoadedNetwork", "NetworkSpec", "load_checkpoint"]

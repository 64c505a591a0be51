"""Model packs: manifests, the store of verified files, downloads."""

from facefleet.packs.manifest import DetectorSpec, EmbedderSpec, LocatedManifest, Manifest, ModelFile, parse
from facefleet.packs.store import FileStatus, PackStatus, Store

__all__ = [
    "DetectorSpec",
    "EmbedderSpec",
    "FileStatus",
    "LocatedManifest",
    "Manifest",
    "ModelFile",
    "PackStatus",
    "Store",
    "parse",
]

"""Where pictures come from: files, folders, globs, lists, standard input, tar and zip archives."""

from facefleet.sources.inputs import InputOptions, Inputs, is_archive
from facefleet.sources.item import SourceItem

__all__ = ["InputOptions", "Inputs", "SourceItem", "is_archive"]

"""Settings: what they are, where they come from, and how many threads this process may use."""

from facefleet.config.keys import setting_keys
from facefleet.config.load import Loaded, load_settings
from facefleet.config.machine import Machine, this_machine
from facefleet.config.profile import Profile, read_profile, with_profile, write_profile
from facefleet.config.settings import (
    BatchSettings,
    CacheSettings,
    DecodeSettings,
    DetectSettings,
    EmbedSettings,
    JobSettings,
    RuntimeSettings,
    Settings,
    on_device,
)
from facefleet.config.threads import available_threads

__all__ = [
    "BatchSettings",
    "CacheSettings",
    "DecodeSettings",
    "DetectSettings",
    "EmbedSettings",
    "JobSettings",
    "Loaded",
    "Machine",
    "Profile",
    "RuntimeSettings",
    "Settings",
    "available_threads",
    "load_settings",
    "on_device",
    "read_profile",
    "setting_keys",
    "this_machine",
    "with_profile",
    "write_profile",
]

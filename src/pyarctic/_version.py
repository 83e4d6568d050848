"""The version, alone in its module so that `arctic version` and the build read it without importing anything."""

__version__ = "0.1.0"

"""Manifests and manifest lists: entries encoded, or carried over from older manifests as bytes."""

"""Writing manifests and manifest lists.

`new_entries` encodes the entries of new files, `carry_entries` copies entries of existing manifests as bytes, and
`MetadataFiles` writes them into manifests and manifest lists.
"""

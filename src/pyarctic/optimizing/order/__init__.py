"""Sort order and z-order: how far the files of a partition overlap, from the bounds in manifests."""

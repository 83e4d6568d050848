"""Sort order and z-order: how files of a partition overlap, from the bounds in manifests."""

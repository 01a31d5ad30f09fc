"""The tasks of a diff on a Dask cluster."""

from accucompare.compare.cluster.cluster import Cluster, open_cluster

__all__ = ["Cluster", "open_cluster"]

"""The tasks of a diff on a Dask cluster."""

from accucompare.compare.cluster.cluster import Cluster as Cluster
from accucompare.compare.cluster.cluster import open_cluster as open_cluster

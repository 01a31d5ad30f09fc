"""The tasks of a diff on a Dask cluster."""

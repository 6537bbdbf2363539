"""Stores of files: folders of this machine, S3, Google Cloud Storage, and any file system of Arrow or fsspec.

`places` finds the store behind an address, and `calls` calls a store's client and bounds each wait. `files` writes a
file whole or not at all, and `commits` a folder. On this machine, `local_files` reads and writes files,
`atomic_folders` writes folders whole or not at all, and `working_folders` makes and sweeps private folders among those
of other users. `manifests` describes the contents of a folder in any store.
"""

"""Stores: where files are kept, be it a folder of this machine, S3, Google's, or what Arrow and fsspec know.

`places` finds the store that an address means, `calls` asks it with an end to each wait, `files` writes a file whole or
not at all, and `commits` does so with a folder. On this machine `local_files` reads and writes files, `atomic_folders`
writes folders whole or not at all, and `working_folders` makes and sweeps private ones among those of other users.
`manifests` says what is in a folder, wherever it is.
"""

"""Stores: where files are kept, be it a folder of this machine, S3, Google's, or what Arrow and fsspec know.

`places` finds the store that an address means, `calls` asks it with an end to each wait, `files` writes a file whole or
not at all, and `commits` does so with a folder. On this machine `working_folders` makes and sweeps private folders
among those of other users, and `regular` reads files that another user may have left.
"""

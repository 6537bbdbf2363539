"""Sources and targets of rows: files of many kinds, on any file system, and data of other programs.

`filesystems` finds and opens files; `files` reads any number of them as blocks, in any format. `formats` reads single
files, `archives` files of many samples, and `parquet` parts of files. `writing` puts blocks into files, and `programs`
reads data that other libraries hold.
"""

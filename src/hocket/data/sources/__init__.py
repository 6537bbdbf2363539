"""Where rows come from and go to: files of many kinds, on any file system, and other programs' data.

`filesystems` finds files and opens them; `files` is what reads any number of them as blocks, whatever their format;
`formats` knows what is in one file, and `archives` what is in one of many; `parquet` reads parts of files. `writing`
puts blocks into files, and `programs` takes what other libraries hold.
"""

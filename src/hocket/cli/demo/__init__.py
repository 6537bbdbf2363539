"""`hocket demo`: a small convolutional network learns handwritten digits, in several worker processes.

`command` is what the command runs, with the data and the picture; `training` is the training function, and what to read
to write one's own.
"""

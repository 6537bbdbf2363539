"""`hocket demo`: a small convolutional network learns handwritten digits, in several worker processes.

`command` runs the demo, with its data and its picture. `training` has the training function, as a model for others.
"""

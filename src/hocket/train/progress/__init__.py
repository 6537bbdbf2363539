"""The one progress display: what a run has done, how fast, how long it will take, and which rank is behind.

`model` counts and knows no clock; `text` puts it into words and colours; `terminal` is where it is shown;
`display` is the callback that ties them together, and knows notebooks.
"""

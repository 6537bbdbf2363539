"""Checkpoints: folders of files that a run's ranks have written together.

`checkpoint` has the user's handle, `reported` the states of reported checkpoints, `kept` a run folder's contents.
`storage` writes and checks files, `uploads` does so while training goes on, and `replica` keeps a run in a store. If
machines share no folder, files travel as `file_chunks` and lie in a `cache`.
"""

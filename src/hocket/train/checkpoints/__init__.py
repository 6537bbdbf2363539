"""Checkpoints: folders of files that a run's ranks have written together.

`checkpoint` is what users hold, `reported` what a run has of them, `kept` what its folder has. `storage` writes and
checks their files, `uploads` does so while training goes on, and `replica` keeps a run in a store. Where machines share
no folder, files travel as `file_chunks` and lie in a `cache`.
"""

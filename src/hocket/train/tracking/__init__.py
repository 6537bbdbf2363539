"""Where metrics go that are watched or kept: files of lines, TensorBoard, MLflow, a picture.

Nothing here knows what a trainer is. A package that may be missing is imported on use, and its absence names what to
install.
"""

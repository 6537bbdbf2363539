"""Outputs for metrics: files of lines, TensorBoard, MLflow, a picture.

Nothing here depends on trainers. Optional packages are imported on use; if one is missing, the error says what to
install.
"""

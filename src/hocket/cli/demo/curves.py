"""The picture of the demo."""

from __future__ import annotations

from pathlib import Path


def save_curves(history: list[dict[str, object]], path: Path) -> None:
    """Draw loss and accuracy over the epochs, and save them as a PNG."""
    # Loaded here because the ranks, which import this package, draw nothing. No `pyplot`: it would look for a display.
    from matplotlib import figure

    epochs = [metrics["epoch"] for metrics in history]
    picture = figure.Figure(figsize=(9, 3.5), layout="constrained")
    left, right = picture.subplots(1, 2)
    left.plot(epochs, [metrics["loss"] for metrics in history], marker="o")
    left.set(title="Training loss", xlabel="epoch", ylabel="cross-entropy", yscale="log")
    right.plot(epochs, [metrics["accuracy"] for metrics in history], marker="o", color="tab:green")
    right.set(title="Accuracy on held-out digits", xlabel="epoch", ylabel="share recognised")
    for axes in (left, right):
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.grid(visible=True, alpha=0.3)
    picture.savefig(path, dpi=120)

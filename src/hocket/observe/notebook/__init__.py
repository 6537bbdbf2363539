"""Curves of this session's training runs in a notebook, which follow `fit()`.

They need ``pip install 'hocket[notebook]'``, and JupyterLab, Notebook 7, VS Code or another viewer of widgets. Their
data come from each run's log, as in the dashboard, at no cost to the thread that trains.
"""

from hocket.observe.notebook.curves import LiveCurves as LiveCurves

"""The trainings of this session as curves in a notebook, which move while `fit()` runs.

Needs ``pip install 'hocket[notebook]'``, and JupyterLab, Notebook 7, VS Code or whatever else shows widgets. What is
shown comes from the log of each run, as in the dashboard; the kernel's thread that trains does nothing for it.
"""

from hocket.observe.notebook.curves import LiveCurves as LiveCurves

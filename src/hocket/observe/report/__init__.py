"""One HTML file about a run: curves, figures, tables. It has its data inside, loads nothing, and opens from a disk.

- `document`: the contents of a report, and its file.
- `report.js`, `report.css`: the drawing in the browser.
"""

from hocket.observe.report.document import Curve as Curve
from hocket.observe.report.document import Report as Report

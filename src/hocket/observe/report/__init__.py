"""One HTML file that shows a run: curves, figures, tables. Its data are inside, it asks nobody for anything, and it
opens from a disk.

- `document`: what a report has, and the file that is made of it.
- `report.js`, `report.css`: what draws it in the browser.
"""

from hocket.observe.report.document import Curve as Curve
from hocket.observe.report.document import Report as Report

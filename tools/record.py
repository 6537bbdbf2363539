"""Records what a command shows in a terminal, as an animated picture: `python tools/record.py OUT.svg COMMAND ...`.

The command runs in a terminal of its own. Its screens are kept as they change, some a second, and shown one after the
other by the picture's own style sheet, so that it plays wherever pictures are shown.
"""

from __future__ import annotations

import fcntl
import html
import os
import pty
import select
import struct
import sys
import termios
import time
from pathlib import Path

import pyte

COLUMNS, ROWS = 100, 18
FRAMES_PER_SECOND = 4
LAST_SECONDS = 4.0
LINE, LETTER, MARGIN = 19, 8.43, 14
COLOURS = {
    "default": "#d8dee9",
    "black": "#4c566a",
    "red": "#bf616a",
    "green": "#a3be8c",
    "brown": "#ebcb8b",
    "blue": "#81a1c1",
    "magenta": "#b48ead",
    "cyan": "#88c0d0",
    "brightblack": "#4c566a",
    "brightred": "#d06f79",
}


def record(command: list[str]) -> list[tuple[float, list[str]]]:
    """Run a command; return its screens, each with the second at which it stood there."""
    child, master = pty.fork()
    if not child:
        os.execvp(command[0], command)
    fcntl.ioctl(master, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    screen = pyte.Screen(COLUMNS, ROWS)
    stream = pyte.ByteStream(screen)
    began, frames = time.monotonic(), [(0.0, draw(screen, command))]
    is_open = True
    while is_open:
        if select.select([master], [], [], 1 / FRAMES_PER_SECOND)[0]:
            try:
                found = os.read(master, 65536)
            except OSError:  # the command has ended
                found = b""
            is_open = bool(found)
            stream.feed(found)
        now, drawn = time.monotonic() - began, draw(screen, command)
        if drawn != frames[-1][1] and (not is_open or now - frames[-1][0] >= 1 / FRAMES_PER_SECOND):
            frames.append((now, drawn))
    os.waitpid(child, 0)
    return frames


def draw(screen: pyte.Screen, command: list[str]) -> list[str]:
    """Return the lines of a screen as markup, below the command."""
    shown = ["$ " + html.escape(" ".join([Path(command[0]).name, *command[1:]]))]
    for row in range(ROWS):
        parts: list[tuple[str, str]] = []
        for column in range(COLUMNS):
            cell = screen.buffer[row][column]
            colour = COLOURS.get(cell.fg, COLOURS["default"])
            if parts and parts[-1][0] == colour:
                parts[-1] = (colour, parts[-1][1] + cell.data)
            else:
                parts.append((colour, cell.data))
        shown.append("".join(f'<tspan fill="{colour}">{html.escape(text)}</tspan>' for colour, text in parts))
    while len(shown) > 1 and not shown[-1].replace('<tspan fill="#d8dee9">', "").replace("</tspan>", "").strip():
        shown.pop()
    return shown


def write(frames: list[tuple[float, list[str]]], path: Path) -> None:
    """Write the picture."""
    total = frames[-1][0] + LAST_SECONDS
    width = round(COLUMNS * LETTER + 2 * MARGIN)
    height = (max(len(lines) for _, lines in frames) + 1) * LINE + MARGIN
    styles, groups = [], []
    for number, (start, lines) in enumerate(frames):
        end = frames[number + 1][0] if number + 1 < len(frames) else total
        first, last = 100 * start / total, 100 * end / total
        styles.append(
            f"@keyframes f{number}{{0%,{first:.2f}%{{visibility:hidden}}{first + 0.01:.2f}%,{last:.2f}%"
            f"{{visibility:visible}}{min(last + 0.01, 100):.2f}%,100%{{visibility:hidden}}}}"
            f".f{number}{{visibility:hidden;animation:f{number} {total:.1f}s step-end infinite}}"
        )
        texts = "".join(
            f'<text x="{MARGIN}" y="{(row + 1) * LINE + MARGIN / 2:.0f}">{line}</text>'
            for row, line in enumerate(lines)
        )
        groups.append(f'<g class="f{number}">{texts}</g>')
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}">'
        f"<style>text{{font:14px ui-monospace,Menlo,Consolas,monospace;white-space:pre;fill:{COLOURS['default']}}}"
        f'{"".join(styles)}</style><rect width="100%" height="100%" rx="8" fill="#2e3440"/>{"".join(groups)}</svg>\n'
    )


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit("python tools/record.py OUT.svg COMMAND ...")
    write(record(sys.argv[2:]), Path(sys.argv[1]))

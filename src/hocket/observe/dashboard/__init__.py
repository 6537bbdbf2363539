"""`hocket dashboard`: a page in the browser that shows a session, served by a process of its own.

- `server`: opens a port on loopback or a socket that only its user may open. Ends when nobody looks or nothing is left.
- `app`: the routes, each of which only reads.
- `guards`: who may ask for what.
- `static`: the pages. No build step. What others wrote is in `observe/vendor`, with their licences.
"""

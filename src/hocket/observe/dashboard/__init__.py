"""`hocket dashboard`: pages in the browser that show a session, served by their own process.

- `server`: opens a port on loopback, or a socket for its user alone. Ends when idle, or with its session.
- `app`: the routes, all read-only.
- `guards`: the checks of each request.
- `static`: the pages, without a build step. Third-party scripts and licences are in `observe/vendor`.
"""

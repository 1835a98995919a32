#!/usr/bin/env python3
"""Gives the files of one directory to whoever has the token, over HTTP, from any byte on. Standard library only.

share.py ORDER   a JSON file: bind, port, token, folder, files (path, size and SHA-256 of each)
"""

import hmac
import http.server
import json
import os
import re
import sys
import urllib.parse


class Handler(http.server.BaseHTTPRequestHandler):
    """GET /PATH, with `Authorization: Bearer TOKEN` and `Range: bytes=FIRST-`."""

    protocol_version = "HTTP/1.1"
    timeout = 60
    order = None

    def do_GET(self):
        """Refuse it, or give the file."""
        order, path = self.order, urllib.parse.unquote(self.path.lstrip("/"))
        given = self.headers.get("Authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {order['token']}".encode()):
            self.answer(403)
        elif path not in {entry[0] for entry in order["files"]}:
            self.answer(404)
        else:
            self.give(os.path.join(order["folder"], path))

    def give(self, path):
        """A file, from the byte on that was asked for."""
        first = int(re.sub(r"^bytes=(\d+)-$", r"\1", self.headers.get("Range", "bytes=0-")))
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            self.answer(206, max(size - first, 0))
            if first < size:
                self.connection.sendfile(file, first)

    def answer(self, status, size=0):
        """The head of an answer."""
        self.send_response(status)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def log_message(self, *words):
        """Nothing: who fetches what is no news."""


def main(path):
    """Serve until the unit is stopped."""
    with open(path) as file:
        Handler.order = json.load(file)
    place = (Handler.order["bind"], Handler.order["port"])
    http.server.ThreadingHTTPServer(place, Handler).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])

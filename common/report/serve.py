"""Serves the page on this machine, to whoever has its URL; with --watch it follows runs that train."""

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

from common.compare.verdict import Comparison
from common.errors import UserError
from common.report.page.render import render_html, render_message

HOST = "127.0.0.1"
POLL_SECONDS = 1.0  # between two looks at the files
SHARE = 0.1  # of the time may go into making the page again


@dataclass
class Page:
    """What is served at present. version: changes with the page."""

    html: bytes
    version: str = ""


def serve(comparison: Comparison, port: int) -> None:
    """Serve the page until Ctrl-C. Raises UserError where the port cannot be used."""
    with serving(Page(render_html(comparison).encode()), port) as url, suppress(KeyboardInterrupt):
        print(f"{url} (Ctrl-C to end)", flush=True)
        while True:
            time.sleep(POLL_SECONDS)


def watch(look: Callable[[], Comparison], roots: Iterable[Path], port: int) -> None:
    """Serve the page until Ctrl-C, and make it again when files below the roots change; print a verdict that changes.

    look: reads the runs. Its UserError, such as that there are no runs yet, is served in their place.
    """
    page, said = Page(b""), ""
    before = None
    with serving(page, port) as url, suppress(KeyboardInterrupt):
        print(f"{url} (Ctrl-C to end)", flush=True)
        while True:
            files = _state(roots)
            began = time.monotonic()
            if files != before:
                before = files
                verdict, sentence = _make(page, look)
                if verdict != said:
                    said = verdict
                    print(sentence, flush=True)
            time.sleep(max(POLL_SECONDS, (time.monotonic() - began) / SHARE))


def _make(page: Page, look: Callable[[], Comparison]) -> tuple[str, str]:
    """Make the page again. Returns the verdict, and as a sentence."""
    version = secrets.token_hex(8)
    try:
        comparison = look()
        html, said = render_html(comparison, version), (comparison.verdict, comparison.sentence)
    except UserError as error:
        html, said = render_message(str(error)), (str(error), f"waiting: {error}")
    page.html, page.version = html.encode(), version
    return said


def _state(roots: Iterable[Path]) -> dict[str, tuple[int, int]]:
    """Size and time of all files below the roots."""
    found = {}
    for root in roots:
        below = (os.path.join(directory, name) for directory, _, names in os.walk(root) for name in names)
        for path in [str(root)] if root.is_file() else below:
            with suppress(OSError):  # it has just been replaced
                status = os.stat(path)
                found[path] = status.st_size, status.st_mtime_ns
    return found


@contextmanager
def serving(page: Page, port: int) -> Iterator[str]:
    """Serve a page meanwhile. Yields its URL, http://127.0.0.1:PORT/TOKEN/. Raises UserError."""
    token = secrets.token_urlsafe(24)
    try:
        server = ThreadingHTTPServer((HOST, port), partial(_Handler, page, token))
    except OSError as error:
        raise UserError(
            f"port={port}: cannot be used: {error.strerror}; choose another, or 0 for a free one"
        ) from error
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{HOST}:{server.server_port}/{token}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    """Answers GET /TOKEN/ with the page and GET /TOKEN/version with its version, and nothing else."""

    def __init__(self, page: Page, token: str, *connection: Any) -> None:
        self.page, self.token = page, token
        super().__init__(*connection)

    def do_GET(self) -> None:
        _, token, *rest = self.path.split("/")
        if not secrets.compare_digest(token.encode(), self.token.encode()) or rest not in ([""], ["version"]):
            self.send_error(404)
            return
        body, kind = (self.page.version.encode(), "plain") if rest == ["version"] else (self.page.html, "html")
        self.send_response(200)
        self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")  # the URL has the token
        self.end_headers()
        with suppress(ConnectionError):  # the reader has left
            self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Say nothing of requests: their paths have the token."""

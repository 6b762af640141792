"""HTTP server for the page on this machine, for readers who have its URL. With --watch it follows running runs."""

import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import socket
from socketserver import BaseServer
from threading import Thread

from typing_extensions import override

from common.compare.verdict import Comparison
from common.errors import UserError, escape_control_characters
from common.report.page.render import render_html, render_message

HOST = "127.0.0.1"
POLL_SECONDS = 1.0  # time between two checks of the files
MAX_RENDER_SHARE = 0.1  # largest share of the time that `watch` spends on rendering the page


@dataclass
class ServedPage:
    """The page that is served now. `watch` replaces the fields while the threads of the server read them."""

    html: bytes
    version: str = ""  # changes with the page


@dataclass(frozen=True)
class _FileState:
    size: int  # bytes
    modified_ns: int


def serve(comparison: Comparison, port: int) -> None:
    """Serve the page until Ctrl-C. Raise UserError if the port cannot be used."""
    with serve_page(ServedPage(render_html(comparison).encode()), port) as url, suppress(KeyboardInterrupt):
        print(f"{url} (Ctrl-C to end)", flush=True)
        while True:
            time.sleep(POLL_SECONDS)


def watch(read: Callable[[], Comparison], roots: Iterable[Path], port: int) -> None:
    """Serve the page until Ctrl-C, and render it again when files change. Print the verdict when it changes.

    Args:
        read: Reads and compares the runs. If it raises UserError, such as for missing runs, the message is served.
        roots: Files, and directories whose files are watched.
        port: The port; 0 for a free one.
    """
    page = ServedPage(b"")
    last_verdict = ""
    last_files: dict[str, _FileState] | None = None
    with serve_page(page, port) as url, suppress(KeyboardInterrupt):
        print(f"{url} (Ctrl-C to end)", flush=True)
        while True:
            files = _list_files(roots)
            started_at = time.monotonic()
            if files != last_files:
                last_files = files
                verdict, sentence = _update_page(page, read)
                if verdict != last_verdict:
                    last_verdict = verdict
                    print(escape_control_characters(sentence), flush=True)
            time.sleep(max(POLL_SECONDS, (time.monotonic() - started_at) / MAX_RENDER_SHARE))


def _update_page(page: ServedPage, read: Callable[[], Comparison]) -> tuple[str, str]:
    """Render the page again. Return the verdict, and a sentence that explains it."""
    version = secrets.token_hex(8)
    try:
        comparison = read()
        html, sentence = render_html(comparison, version), comparison.sentence
        verdict = f"{comparison.headline}: {comparison.verdict}"
    except UserError as error:
        html, verdict, sentence = render_message(str(error)), str(error), f"waiting: {error}"
    page.html, page.version = html.encode(), version
    return verdict, sentence


def _list_files(roots: Iterable[Path]) -> dict[str, _FileState]:
    """Return the state of all files below the roots, by path."""
    states = {}
    for root in roots:
        paths_below = (os.path.join(directory, name) for directory, _, names in os.walk(root) for name in names)  # noqa: PTH118  many paths, and strings are faster
        for path in [str(root)] if root.is_file() else paths_below:
            with suppress(OSError):  # the file was replaced meanwhile
                status = os.stat(path)  # noqa: PTH116  as above
                states[path] = _FileState(status.st_size, status.st_mtime_ns)
    return states


@contextmanager
def serve_page(page: ServedPage, port: int) -> Iterator[str]:
    """Serve a page inside the `with` block. Yield its URL, http://127.0.0.1:PORT/TOKEN/. Raise UserError."""
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
    """Handler that answers GET /TOKEN/ with the page and GET /TOKEN/version with its version, and nothing else."""

    def __init__(
        self, page: ServedPage, token: str, request: socket, client_address: tuple[str, int], server: BaseServer
    ) -> None:
        self.page, self.token = page, token
        super().__init__(request, client_address, server)

    def do_GET(self) -> None:
        """Answer a GET request."""
        _, token, *path = self.path.split("/")
        if not secrets.compare_digest(token.encode(), self.token.encode()) or path not in ([""], ["version"]):
            self.send_error(404)
            return
        body, text_type = (self.page.version.encode(), "plain") if path == ["version"] else (self.page.html, "html")
        self.send_response(200)
        self.send_header("Content-Type", f"text/{text_type}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "no-referrer")  # the URL contains the token
        self.end_headers()
        with suppress(ConnectionError):  # the reader closed the connection
            self.wfile.write(body)

    @override
    def log_message(self, format: str, *arguments: object) -> None:
        """Log nothing, because the path of a request contains the token."""

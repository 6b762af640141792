"""A small stand-in for the Hugging Face hub on loopback: repository metadata, file listings and files."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import parse_qs, unquote, urlsplit

PAGE = 2  # entries of a listing's page: small, so that every listing is paginated


@contextmanager
def fake_hub(root: Path) -> Iterator["FakeHub"]:
    """Serve `root`/{datasets,models}/<owner>/<name>/<commit>/<files>. The branch main is the last commit by name."""
    server = FakeHub(root)
    Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    try:
        yield server
    finally:
        server.stop()


class FakeHub(ThreadingHTTPServer):
    """Server that logs its requests. Repositories in `gated` ask for a login."""

    daemon_threads = True

    def __init__(self, root: Path):
        super().__init__(("127.0.0.1", 0), _HubRequestHandler)
        self.root = root
        self.requests: list[str] = []
        self.gated: set[str] = set()

    def stop(self) -> None:
        """Refuse all further connections."""
        self.shutdown()
        self.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _RefusedRequestError(Exception):
    """A request that is answered with an error: (code of the hub, HTTP status)."""


class _HubRequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeHub

    def do_GET(self) -> None:
        self._answer()

    def do_HEAD(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        self.server.requests.append(format % args)

    def _answer(self) -> None:
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        parts = [unquote(part) for part in url.path.strip("/").split("/")]
        try:
            if parts[0] == "api":
                self._api(parts[1], "/".join(parts[2:4]), parts[4:], parse_qs(url.query), parse_qs(body))
            else:
                kind = parts.pop(0) if parts[0] == "datasets" else "models"
                self._file(kind, "/".join(parts[:2]), parts[2:])
        except _RefusedRequestError as refusal:
            code, status = refusal.args
            self._send(status, json.dumps({"error": code}).encode(), {"X-Error-Code": code, "X-Error-Message": code})

    def _commit(self, kind: str, repo_id: str, revision: str) -> Path:
        repository = self.server.root / kind / repo_id
        if not repository.is_dir():
            raise _RefusedRequestError("RepoNotFound", 404)
        if repo_id in self.server.gated:
            raise _RefusedRequestError("GatedRepo", 401)
        commit = max(repository.iterdir()) if revision == "main" else repository / revision
        if not commit.is_dir():
            raise _RefusedRequestError("RevisionNotFound", 404)
        return commit

    def _api(self, kind: str, repo_id: str, path_parts: list[str], query: dict, form: dict) -> None:
        action, revision, *path = [*path_parts, "", ""] if path_parts else ["revision", "main"]
        commit = self._commit(kind, repo_id, revision)
        within = commit / "/".join(filter(None, path))
        headers = {"Content-Type": "application/json"}
        if action == "revision":
            files = [{"rfilename": entry["path"]} for entry in self._entries(commit, commit, True) if "oid" in entry]
            answer: object = {"id": repo_id, "sha": commit.name, "siblings": files, "tags": [], "private": False}
        elif action == "tree" and within.is_dir():
            start = int(query.get("cursor", ["0"])[0])
            recursive = query.get("recursive", ["false"])[0].lower() in ("1", "true")
            entries = self._entries(commit, within, recursive)
            answer = entries[start : start + PAGE]
            if start + PAGE < len(entries):
                page = f"{self.server.url}{urlsplit(self.path).path}?recursive={recursive}&cursor={start + PAGE}"
                headers["Link"] = f'<{page}>; rel="next"'
        elif action == "paths-info":
            answer = [self._entry(commit, commit / name) for name in form["paths"] if (commit / name).exists()]
        else:
            raise _RefusedRequestError("EntryNotFound", 404)
        self._send(200, json.dumps(answer).encode(), headers)

    def _entries(self, commit: Path, within: Path, recursive: bool) -> list[dict]:
        return [self._entry(commit, path) for path in sorted(within.rglob("*") if recursive else within.iterdir())]

    def _entry(self, commit: Path, path: Path) -> dict:
        entry = {"path": str(path.relative_to(commit))}
        if path.is_dir():
            return {"type": "directory", "oid": "0" * 40, "size": 0, **entry}
        content = path.read_bytes()
        return {"type": "file", "oid": hashlib.sha1(content).hexdigest(), "size": len(content), **entry}

    def _file(self, kind: str, repo_id: str, path_parts: list[str]) -> None:
        if path_parts[:1] != ["resolve"]:
            raise _RefusedRequestError("EntryNotFound", 404)
        commit = self._commit(kind, repo_id, path_parts[1])
        path = commit / "/".join(path_parts[2:])
        if not path.is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound", "X-Repo-Commit": commit.name})
            return
        content = path.read_bytes()
        etag = f'"{hashlib.sha1(content).hexdigest()}"'
        self._send(200, content, {"ETag": etag, "X-Repo-Commit": commit.name, "Accept-Ranges": "bytes"})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

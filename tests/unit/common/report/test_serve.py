"""Tests of the server: who gets the page, and when it is rendered again."""

import json
import re
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from common.errors import UserError
from common.report.serve import HOST, ServedPage, serve_page
from tests.conftest import ROOT, wait_until
from tests.unit.common.compare.conftest import MakeRun

pytestmark = pytest.mark.slow

URL = re.compile(r"^(http\S+) \(Ctrl-C to end\)$", re.MULTILINE)


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=5) as answer:
        assert answer.headers["Referrer-Policy"] == "no-referrer" and answer.headers["Cache-Control"] == "no-store"
        text: str = answer.read().decode()
        return text


def test_the_page_needs_its_secret_url() -> None:
    with serve_page(ServedPage(b"<p>page", "3"), 0) as url:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", url)
        assert get(url) == "<p>page" and get(f"{url}version") == "3"
        root = url.rsplit("/", 2)[0]
        for other in (f"{root}/", f"{root}/{'x' * 32}/", f"{url}other", f"{url}../", url[:-2], f"{url}version/"):
            with pytest.raises(urllib.error.HTTPError) as error:
                get(other)
            assert error.value.code == 404
        port = int(url.split(":")[2].split("/")[0])
        listening = [c.laddr for c in psutil.Process().net_connections() if c.status == psutil.CONN_LISTEN]
        assert [ip for ip, listened in listening if listened == port] == [HOST]
    with pytest.raises(OSError):
        get(url)


def test_a_port_that_is_in_use() -> None:
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        message = f"port={port}: cannot be used: Address already in use; choose another, or 0 for a free one"
        with pytest.raises(UserError, match=message), serve_page(ServedPage(b""), port):
            pass


@pytest.fixture
def command(tmp_path: Path) -> Iterator[Any]:
    """Return a function that starts the command, and returns its process, its URL and the file of its output."""
    started = []
    directory = tmp_path / "command"
    (directory / "runs").mkdir(parents=True)

    def start(*arguments: str) -> tuple["subprocess.Popen[bytes]", str, Path]:
        output = directory / "output"
        line = [sys.executable, "-m", "common.compare", *arguments]
        with output.open("w") as file:
            started.append(subprocess.Popen(line, cwd=directory, env={"PYTHONPATH": str(ROOT)}, stdout=file))
        wait_until(lambda: URL.search(output.read_text()))
        url = URL.search(output.read_text())
        assert url is not None
        return started[-1], url[1], output

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_watched_page_is_rendered_again(command: Any, make_run: MakeRun, tmp_path: Path) -> None:
    """Every change is one move or one short append, because the command may read between two writes."""
    process, url, output = command("--watch")
    watched = output.parent / "runs"
    wait_until(lambda: "no runs found" in get(url))
    finished = make_run("a").rename(watched / "a")
    wait_until(lambda: "only one run" in get(url))
    running = make_run("b", framework="tf", strategy="mirrored", status="running")
    (running / "summary.json").rename(running / "running.json")
    rows = (running / "metrics.jsonl").read_text().splitlines(keepends=True)
    (running / "metrics.jsonl").write_text("".join(rows[:12]))
    running = running.rename(watched / "b")
    wait_until(lambda: "2 runs agree at all 12 steps so far" in get(url))
    version = get(f"{url}version")
    assert f'data-version="{version}"' in get(url)
    differs = json.loads(rows[12])
    with (running / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({**differs, "loss": differs["loss"] + 1}) + "\n")
    wait_until(lambda: get(f"{url}version") != version)
    assert "diverge at step 13 of 13" in get(url)
    (tmp_path / "config.yaml").write_text("[")
    (tmp_path / "config.yaml").rename(finished / "config.yaml")
    wait_until(lambda: "config.yaml: not a saved config" in get(url))
    # The page changes before the line is written, and Ctrl-C during the write may write the line twice.
    main_thread = psutil.Process(process.pid)
    wait_until(lambda: "incomplete" in output.read_text() and main_thread.status() == psutil.STATUS_SLEEPING)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0
    kinds = [line.partition(":")[0] for line in output.read_text().splitlines()[1:]]
    assert kinds == ["waiting", "only one run", "lockstep", "diverged", "incomplete"]
    assert not (output.parent / "report.html").exists()


def test_serve_shows_the_written_page(command: Any, make_run: MakeRun) -> None:
    process, url, output = command(str(make_run("a")), str(make_run("b", framework="tf")), "--serve")
    assert get(url) == (output.parent / "report.html").read_text()
    process.send_signal(signal.SIGINT)
    assert process.wait(10) == 0

"""Writer for the files of a report."""

from pathlib import Path

from common.errors import build_write_error


def write_report_file(directory: Path, name: str, text: str) -> Path:
    """Write a file into the directory of the report, which is created if missing. Return the absolute path."""
    path = directory.resolve() / name
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise build_write_error(f"output={directory}", error) from error
    return path

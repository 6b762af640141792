"""Other Python environments: python -m tests.environments DIRECTORY makes those of test_environments.py.

An environment has the packages of this interpreter, and other versions of a few. It therefore takes little time and
space.
"""

import subprocess
import sys
import venv
from pathlib import Path

ENVIRONMENTS = {  # the packages of each environment that differ, with the KerasHub of their time
    "keras-3.6": ("keras==3.6.*", "keras-hub==0.18.*"),
    "keras-3.9": ("keras==3.9.*", "keras-hub==0.20.*"),
    "keras-3.13": ("keras==3.13.*", "keras-hub==0.26.*"),
    "tensorflow-2.16": (
        "tensorflow==2.16.*",
        "keras==3.3.*",
        "numpy==1.26.*",
        "protobuf==4.*",
        "ml-dtypes==0.3.*",
        "tensorboard==2.16.*",
    ),
    "tensorflow-2.18": (
        "tensorflow==2.18.*",
        "keras==3.6.*",
        "numpy==2.0.*",
        "protobuf==5.*",
        "ml-dtypes==0.4.*",
        "tensorboard==2.18.*",
        "keras-hub==0.18.*",
        "tensorflow-text==2.18.*",
    ),
    "tensorflow-2.19": (
        "tensorflow==2.19.*",
        "keras==3.10.*",
        "numpy==2.1.*",
        "protobuf==5.*",
        "ml-dtypes==0.5.*",
        "tensorboard==2.19.*",
        "keras-hub==0.21.*",
        "tensorflow-text==2.19.*",
    ),
    "transformers-4.57": ("transformers==4.57.*", "huggingface_hub==0.36.*", "tokenizers==0.22.*"),
    "tensorflow-2.20": ("tensorflow==2.20.*", "keras==3.11.*", "keras-hub==0.22.*", "tensorflow-text==2.20.*"),
}


def make_environment(directory: Path) -> Path:
    """Make an environment with the packages of this interpreter, and return the directory for other packages."""
    venv.create(directory, with_pip=False, symlinks=True)
    (packages,) = directory.glob("lib/python*/site-packages")
    inherited = [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))]
    (packages / "inherited.pth").write_text("\n".join(inherited) + "\n")
    return packages


def link_package(source: Path, target: Path, patched_file: str, old: str, new: str) -> None:
    """Copy a package as links to its files, but for one file, in which `old` is replaced by `new`.

    Args:
        source: The directory of the package.
        target: The directory to make.
        patched_file: The path of the file in the package.
        old: A text that the file has.
        new: The text that replaces it.
    """
    first, _, rest = patched_file.partition("/")
    target.mkdir()
    for entry in source.iterdir():
        if entry.name != first and entry.name != "__pycache__":
            (target / entry.name).symlink_to(entry)
    if rest:
        link_package(source / first, target / first, rest, old, new)
        return
    text = (source / first).read_text()
    assert old in text
    (target / first).write_text(text.replace(old, new))


def find_python(directory: Path) -> str:
    """Return the path of an environment's interpreter."""
    return str(directory / "bin" / "python")


def main(directory: Path) -> None:
    """Make all environments that are missing."""
    for name, requirements in ENVIRONMENTS.items():
        if (directory / name / "ready").exists():
            continue
        packages = make_environment(directory / name)
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(packages)]
        subprocess.run([*command, *requirements], check=True)
        (directory / name / "ready").touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

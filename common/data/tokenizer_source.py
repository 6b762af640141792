"""A tokenizer that is not trained on the corpus: the files of a directory in Hugging Face format."""

from dataclasses import dataclass
from pathlib import Path

from common.data.identity import FileIdentity, identify_file

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")


@dataclass(frozen=True)
class TokenizerSource:
    """A directory in Hugging Face format whose tokenizer is used."""

    directory: Path
    classes: list[str] | None  # names of the checkpoint's outputs; None if it has no classification head

    def identify(self) -> dict[str, FileIdentity]:
        """Return the identities of the tokenizer's files by name, for the key of the token cache."""
        paths = {name: self.directory / name for name in TOKENIZER_FILES}
        return {name: identify_file(path) for name, path in paths.items() if path.exists()}

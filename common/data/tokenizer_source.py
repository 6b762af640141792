"""Where a tokenizer comes from that is not trained on the corpus: a directory in Hugging Face format."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common.data.identity import identify_file

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json")


@dataclass(frozen=True)
class TokenizerSource:
    """A directory in Hugging Face format whose tokenizer is used.

    classes: those of the checkpoint's classification head, or None where it has none.
    """

    directory: Path
    classes: list[str] | None

    def identify(self) -> dict[str, Any]:
        """What names the tokenizer in the token cache's key."""
        return {
            name: identify_file(self.directory / name) for name in TOKENIZER_FILES if (self.directory / name).exists()
        }

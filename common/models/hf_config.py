"""The contents of a model's config.json in Hugging Face format."""

from collections.abc import Mapping
from typing import Any

HfConfig = Mapping[str, Any]  # each kind of model has its own keys; `build_hf_config` of its spec lists them

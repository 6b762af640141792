"""The Hugging Face hub and its local cache: checkpoints and data sets at a revision."""

import re
from pathlib import Path
from typing import TYPE_CHECKING

from common.config.data import HubSourceSettings
from common.errors import UserError, describe_error

if TYPE_CHECKING:
    import datasets

CHECKPOINT_FILES = [
    "config.json",
    "*.safetensors",
    "model.safetensors.index.json",
    "tokenizer*.json",
    "vocab.txt",
    "special_tokens_map.json",
]
TIMEOUT_SECONDS = 10  # of the first request; after its answer the libraries' own limits and retries apply


class HubUnreachable(UserError):
    """The hub does not answer, or HF_HUB_OFFLINE forbids to ask it."""

    def __init__(self, what: str, revision: str | None, reason: str):
        super().__init__(
            f"{what} ({revision or 'main'}): not in the local cache and the hub cannot be reached ({reason}); "
            "use data=files with model.checkpoint=<directory>, data=idx for images, or what is built in: "
            "data=builtin_nli with model=bert_tiny, bert_mini or bert_small, data=digits with model=convnet"
        )


def download_checkpoint(repo_id: str, revision: str | None) -> Path:
    """The local directory of a checkpoint: its config, tokenizer and safetensors files. Raises UserError.

    Files in the local cache are not downloaded again. Where the hub cannot be reached, only the cache is used.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    what = f"model.checkpoint={repo_id}"
    try:
        _check_revision(what, repo_id, revision, "model")
        offline = None
    except HubUnreachable as error:
        offline = error
    try:
        local = offline is not None
        return Path(
            snapshot_download(repo_id, revision=revision, allow_patterns=CHECKPOINT_FILES, local_files_only=local)
        )
    except LocalEntryNotFoundError as error:
        raise offline or UserError(f"{what}: the download broke off; start again: {describe_error(error)}") from error
    except Exception as error:
        raise UserError(f"{what}: the download broke off; start again: {describe_error(error)}") from error


def load_splits(data: HubSourceSettings) -> "dict[str, datasets.Dataset]":
    """A data set's splits under the keys `train_split` and `validation_split`. Raises UserError.

    A commit that was loaded before comes from the local cache without a request. So does any other revision where the
    hub cannot be reached.
    """
    import datasets

    what = f"data.path={data.path}"
    builder = _cached_builder(data) if _is_commit(data.revision) else None
    if builder is None:
        try:
            _check_revision(what, data.path, data.revision, "dataset")
        except HubUnreachable:
            builder = _cached_builder(data)
            if builder is None:
                raise
        else:
            try:
                builder = datasets.load_dataset_builder(data.path, data.subset, revision=data.revision)
                builder.download_and_prepare()
            except Exception as error:
                raise UserError(
                    f"{what}, data.subset={data.subset}: cannot be loaded: {describe_error(error)}"
                ) from error
    splits = {}
    for key in ("train_split", "validation_split"):
        name = getattr(data, key)
        if name not in builder.info.splits:
            raise UserError(
                f"data.{key}: no split {name!r} in {data.path}; use one of {', '.join(builder.info.splits)}"
            )
        splits[key] = builder.as_dataset(split=name)
    return splits


def _cached_builder(data: HubSourceSettings) -> "datasets.DatasetBuilder | None":
    """The data set as an earlier load of the same commit left it in the local cache, or None.

    `load_dataset` alone would take the newest of any commit where the hub cannot be reached.
    """
    import datasets
    from datasets.naming import camelcase_to_snakecase
    from datasets.packaged_modules.cache.cache import Cache
    from huggingface_hub import try_to_load_from_cache

    commit = data.revision
    if not _is_commit(commit):
        card = try_to_load_from_cache(data.path, "README.md", revision=data.revision, repo_type="dataset")
        if not isinstance(card, str):
            return None
        commit = Path(card).parent.name
    *namespace, name = data.path.split("/")
    root = Path(datasets.config.HF_DATASETS_CACHE, "___".join([*namespace, camelcase_to_snakecase(name)]))
    found = list(root.glob(f"{data.subset or '*'}/*/{commit}"))
    if len(found) != 1:
        return None
    subset, version, _ = found[0].parts[-3:]
    return Cache(dataset_name=name, repo_id=data.path, config_name=subset, version=version, hash=commit)


def _check_revision(what: str, repo_id: str, revision: str | None, repo_type: str) -> None:
    """Ask the hub for a revision, in one request. Raises HubUnreachable and UserError; `what` is the key and the id.

    The libraries' own first request depends on the revision. They may retry it for half a minute where the hub does not
    answer, and may report an unknown id and an unknown revision alike.
    """
    from huggingface_hub import HfApi, errors

    try:
        HfApi().repo_info(repo_id, revision=revision, repo_type=repo_type, timeout=TIMEOUT_SECONDS)
    except errors.GatedRepoError:
        raise UserError(f"{what}: gated; ask for access on the hub's page of {repo_id}, then set HF_TOKEN") from None
    except errors.RepositoryNotFoundError:
        raise UserError(f"{what}: no such {repo_type} on the hub; check the id, or set HF_TOKEN if private") from None
    except errors.RevisionNotFoundError:
        key = f"{what.partition('.')[0]}.revision"
        raise UserError(f"{what}: no revision {revision!r} on the hub; set {key} to one it has") from None
    except errors.HFValidationError:
        raise UserError(f"{what}: {repo_id!r} is not an id of the hub; those look like owner/name") from None
    except errors.OfflineModeIsEnabled as error:
        raise HubUnreachable(what, revision, "HF_HUB_OFFLINE is set") from error
    except Exception as error:  # the HTTP library, and so its errors, depends on huggingface_hub's version
        raise HubUnreachable(what, revision, f"offline? {describe_error(error)}") from error


def _is_commit(revision: str) -> bool:
    """Whether this is a full commit hash, which always names the same thing."""
    return re.fullmatch("[0-9a-f]{40}", revision) is not None

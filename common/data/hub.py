"""Checkpoints and data sets of the Hugging Face hub, downloaded to its local cache.

A revision is a branch, a tag or a commit. Only a commit always names the same content.
"""

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
TIMEOUT_SECONDS = 10  # limit of the request that checks the revision; later requests have the libraries' own limits


class HubUnreachableError(UserError):
    """The hub does not answer, or HF_HUB_OFFLINE forbids requests."""

    def __init__(self, setting: str, revision: str | None, reason: str) -> None:
        super().__init__(
            f"{setting} ({revision or 'main'}): not in the local cache and the hub cannot be reached ({reason}); "
            "use data=files with model.checkpoint=<directory>, data=idx for images, or what is built in: "
            "data=builtin_nli with model=bert_tiny, bert_mini or bert_small, data=digits with model=convnet"
        )


def download_checkpoint(repo_id: str, revision: str | None) -> Path:
    """Return the local directory of a checkpoint: its config, tokenizer and safetensors files.

    Files in the local cache are not downloaded again. If the hub cannot be reached, only the cache is used.

    Raises:
        UserError: If the checkpoint does not exist or cannot be downloaded.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    setting = f"model.checkpoint={repo_id}"
    unreachable = None
    try:
        _check_revision(setting, repo_id, revision, "model")
    except HubUnreachableError as error:
        unreachable = error
    try:
        directory = snapshot_download(
            repo_id, revision=revision, allow_patterns=CHECKPOINT_FILES, local_files_only=unreachable is not None
        )
    except Exception as error:
        if unreachable and isinstance(error, LocalEntryNotFoundError):
            raise unreachable from error
        raise UserError(f"{setting}: download interrupted; retry ({describe_error(error)})") from error
    return Path(directory)


def load_splits(data: HubSourceSettings) -> "dict[str, datasets.Dataset]":
    """Return the splits of a data set under the keys `train_split` and `validation_split`.

    A commit that was loaded before comes from the local cache, without a request to the hub. If the hub cannot be
    reached, a branch or a tag that was loaded before comes from there too.

    Raises:
        UserError: If the data set or a split does not exist or cannot be loaded.
    """
    builder = _prepare_builder(data)
    splits = {}
    for key in ("train_split", "validation_split"):
        name = getattr(data, key)
        if name not in builder.info.splits:
            raise UserError(
                f"data.{key}: no split {name!r} in {data.path}; use one of {', '.join(builder.info.splits)}"
            )
        splits[key] = builder.as_dataset(split=name)
    return splits


def _prepare_builder(data: HubSourceSettings) -> "datasets.DatasetBuilder":
    """Return the builder of a data set that is in the local cache, downloaded first if necessary."""
    import datasets

    setting = f"data.path={data.path}"
    if _is_commit(data.revision) and (builder := _find_cached_builder(data)):
        return builder
    try:
        _check_revision(setting, data.path, data.revision, "dataset")
    except HubUnreachableError:
        if builder := _find_cached_builder(data):
            return builder
        raise
    try:
        builder = datasets.load_dataset_builder(data.path, data.subset, revision=data.revision)
        builder.download_and_prepare()
    except Exception as error:
        raise UserError(f"{setting}, data.subset={data.subset}: cannot be loaded: {describe_error(error)}") from error
    return builder


def _find_cached_builder(data: HubSourceSettings) -> "datasets.DatasetBuilder | None":
    """Return the data set of the same commit that is in the local cache, or None.

    `datasets.load_dataset` is not enough: if the hub cannot be reached, it takes the newest cached data of any commit.
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
        commit = Path(card).parent.name  # the hub's cache has a directory for each commit
    *namespace, name = data.path.split("/")
    root = Path(datasets.config.HF_DATASETS_CACHE, "___".join([*namespace, camelcase_to_snakecase(name)]))
    cached = [path for path in root.glob(f"*/*/{commit}") if path.is_dir()]  # subset/version/commit
    if not cached:
        return None
    subset = data.subset or _find_default_subset(data.path, commit)
    directories = [path for path in cached if path.parts[-3] == subset]
    if len(directories) != 1:
        return None
    return Cache(
        dataset_name=name, repo_id=data.path, config_name=subset, version=directories[0].parts[-2], hash=commit
    )


def _find_default_subset(repo_id: str, commit: str) -> str:
    """Return the default subset of a data set, from the data set's card in the local cache.

    Raises:
        UserError: If the data set has several subsets and no default.
    """
    from datasets.utils.metadata import MetadataConfigs
    from huggingface_hub import DatasetCard, try_to_load_from_cache

    card = try_to_load_from_cache(repo_id, "README.md", revision=commit, repo_type="dataset")
    if not isinstance(card, str):
        return "default"
    content = DatasetCard.load(card, ignore_metadata_errors=True).data
    subsets = MetadataConfigs.from_dataset_card_data(content)
    if default := subsets.get_default_config_name():
        return default
    if subsets:
        raise UserError(f"data.subset=null: {repo_id} has no default; set it to one of {', '.join(subsets)}")
    infos = content.get("dataset_info") or []
    infos = [infos] if isinstance(infos, dict) else infos
    return infos[0].get("config_name", "default") if len(infos) == 1 else "default"


def _check_revision(setting: str, repo_id: str, revision: str | None, repo_type: str) -> None:
    """Ask the hub for a revision, in one request.

    The libraries could do this themselves. But they may retry for half a minute if the hub does not answer, and may
    report an unknown id and an unknown revision alike.

    Args:
        setting: Config key and its value, such as "model.checkpoint=owner/name", for errors.
        repo_id: Id of the repository.
        revision: Branch, tag or commit; None is the main branch.
        repo_type: "model" or "dataset".

    Raises:
        HubUnreachableError: If the hub does not answer.
        UserError: If the hub has no such revision.
    """
    from huggingface_hub import HfApi, errors

    try:
        HfApi().repo_info(repo_id, revision=revision, repo_type=repo_type, timeout=TIMEOUT_SECONDS)
    except errors.GatedRepoError:
        raise UserError(f"{setting}: gated; ask for access on the hub's page of {repo_id}, then set HF_TOKEN") from None
    except errors.RepositoryNotFoundError:
        raise UserError(
            f"{setting}: no such {repo_type} on the hub; check the id, or set HF_TOKEN if private"
        ) from None
    except errors.RevisionNotFoundError:
        key = f"{setting.partition('.')[0]}.revision"  # model.revision or data.revision
        raise UserError(f"{setting}: no revision {revision!r} on the hub; set {key} to an existing one") from None
    except errors.HFValidationError:
        raise UserError(f"{setting}: {repo_id!r} is not an id of the hub; ids look like owner/name") from None
    except errors.OfflineModeIsEnabled as error:
        raise HubUnreachableError(setting, revision, "HF_HUB_OFFLINE is set") from error
    except Exception as error:  # the HTTP library, and so its errors, depends on huggingface_hub's version
        raise HubUnreachableError(setting, revision, f"offline? {describe_error(error)}") from error


def _is_commit(revision: str) -> bool:
    """Check whether a revision is a full commit hash, which always names the same content."""
    return re.fullmatch("[0-9a-f]{40}", revision) is not None

"""From what Hydra composed to a frozen `Config`, and between a `Config` and config.yaml."""

import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from common.config import keys
from common.config.keys import Scope
from common.config.schema import GROUPS, Config, RunOptions, TrainSettings
from common.errors import UserError

CONF = str(Path(__file__).parents[2] / "conf")
T = TypeVar("T")


def parse_config(composed: DictConfig) -> Config:
    """The composed Hydra config as a `Config`, whose values are of the right types and kinds.

    Raises UserError for a missing value, and OmegaConf's errors, which name the key, for a mistyped or unknown one.
    """
    values: dict[str, Any] = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
    extensions = values.get("extensions") or ()
    if isinstance(extensions, str):
        raise UserError(f"extensions={extensions}: must be a list; give 'extensions=[{extensions}]'")
    for module in extensions:
        _import_extension(module)
    groups: dict[str, Any] = {}
    for group in GROUPS:
        section = _section(group, values.pop(group, None))
        if group == "strategy":
            section = _without_alias(section)
        groups[group] = _typed(group, _schema(group, section), section)
    groups["train"] = _typed("train", TrainSettings, _section("train", values.pop("train", None)))
    return Config(**asdict(_typed("", RunOptions, values)), **groups)


def _import_extension(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # the module is there, but something that it imports is not
            raise
        raise UserError(f"extensions: no module {module}; add its directory to PYTHONPATH") from error


def _section(group: str, section: Any) -> dict[str, Any]:
    if not isinstance(section, dict):
        wanted = f"one of the files in conf/{group}" if group in GROUPS else "a section of keys"
        raise UserError(f"{group}={'null' if section is None else section}: must be {wanted}")
    return section


def _without_alias(section: dict[str, Any]) -> dict[str, Any]:
    """`strategy.workers` is another name of `strategy.replicas`, and `auto` one of null there."""
    section |= {name: None for name in ("workers", "replicas") if section.get(name) == "auto"}
    workers, replicas = section.pop("workers", None), section.get("replicas")
    if workers is not None and replicas not in (None, workers):
        raise UserError(f"strategy.workers={workers} and strategy.replicas={replicas} disagree; give one of them")
    return section if workers is None else {**section, "replicas": workers}


def _schema(group: str, section: dict[str, Any]) -> type:
    kinds = GROUPS[group]
    kind = section.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise UserError(
            f"{group}.kind={kind}: no such kind; there are {', '.join(kinds)}, and those of the modules in `extensions`"
        )
    return kinds[kind]


def _typed(group: str, schema: type[T], section: dict[str, Any]) -> T:
    """An instance of a schema. Errors name the whole key."""
    rest = dict(section)
    with _named(group):
        node = OmegaConf.structured(schema)
        OmegaConf.set_readonly(node, False)  # OmegaConf makes the nodes of frozen classes read-only
    for each in fields(schema):  # type: ignore[arg-type]
        if isinstance(each.type, type) and is_dataclass(each.type):
            name = f"{group}.{each.name}"
            node[each.name] = _typed(name, each.type, _section(name, rest.pop(each.name, None)))
    with _named(group):
        made = OmegaConf.to_object(OmegaConf.merge(node, rest))
    assert isinstance(made, schema)
    return made


@contextmanager
def _named(group: str) -> Iterator[None]:
    prefix = f"{group}." if group else ""
    try:
        yield
    except MissingMandatoryValue as error:
        raise UserError(f"{prefix}{error.full_key}: has no value; give {prefix}{error.full_key}=...") from error
    except OmegaConfBaseException as error:
        if isinstance(error, ConfigKeyError) and not error.full_key:
            error.full_key = str(error.key)
        error.full_key = f"{prefix}{error.full_key}"
        raise


def collect_values(config: Config, *scopes: Scope) -> dict[str, Any]:
    """The values of the keys in these scopes, by name; of all keys where none is given."""
    return {name: value for name, key, value in keys.iterate_keys(config) if not scopes or key.scope in scopes}


def save_config(config: Config, path: Path) -> None:
    """Write the resolved config."""
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(asdict(config))))


def load_config(path: Path) -> Config:
    """Read what `save` wrote."""
    loaded = OmegaConf.load(path)
    assert isinstance(loaded, DictConfig)
    return parse_config(loaded)


def _package_directory(package: str, *parts: str) -> str:
    """The directory of an installed package's data, for conf/model/minilm.yaml."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        distribution = package.replace("_", "-")
        raise UserError(f"model.checkpoint: the package {distribution} is not installed; pip install {distribution}")
    return str(Path(found.origin).parent.joinpath(*parts))


def describe_keys(extensions: Iterable[str] = ()) -> str:
    """A line for each key that has choices, limits or a unit, for `--help`; it names the kinds where these differ."""
    for module in extensions:
        _import_extension(module)
    described: dict[str, dict[str, list[str]]] = {}  # by key: the words, and the kinds that they are about
    schemas = [(kind, schema, f"{group}.") for group, kinds in GROUPS.items() for kind, schema in kinds.items()]
    for kind, schema, prefix in (*schemas, ("", TrainSettings, "train."), ("", RunOptions, "")):
        for name, key in keys.list_keys(schema, prefix):
            described.setdefault(name, {}).setdefault(key.describe(), []).append(kind)
    lines = []
    for name, found in described.items():
        for words, kinds in found.items():
            of = f" ({', '.join(kinds)})" if len(found) > 1 else ""
            lines += [f"{name}{of}: {words}"] if words else []
    return "\n".join(lines)


OmegaConf.register_new_resolver("package_directory", _package_directory, replace=True)
OmegaConf.register_new_resolver("config_keys", describe_keys, replace=True)

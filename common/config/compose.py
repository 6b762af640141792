"""From what Hydra composed to a frozen `Config`, and between a `Config` and config.yaml."""

import importlib
import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from common.config.keys import Scope, flat_values
from common.config.schema import GROUPS, Config, Places, Train, all_keys
from common.errors import UserError

CONF = str(Path(__file__).parents[2] / "conf")
T = TypeVar("T")


def parse(composed: DictConfig) -> Config:
    """The composed Hydra config as a `Config`, whose values are of the right types and kinds.

    Raises UserError for a missing value, and OmegaConf's errors, which name the key, for a mistyped or unknown one.
    """
    values: dict[str, Any] = OmegaConf.to_container(composed, resolve=True)  # type: ignore[assignment]
    for module in values.get("extensions") or ():
        _import_extension(module)
    groups: dict[str, Any] = {}
    for group in GROUPS:
        section = _section(group, values.pop(group, None))
        if group == "strategy":
            section = _without_alias(section)
        groups[group] = _typed(group, _schema(group, section), section)
    groups["train"] = _typed("train", Train, _section("train", values.pop("train", None)))
    return Config(**asdict(_typed("", Places, values)), **groups)


def _import_extension(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise UserError(f"extensions: no module {module}; add its directory to PYTHONPATH") from error


def _section(group: str, section: Any) -> dict[str, Any]:
    if not isinstance(section, dict):
        raise UserError(f"{group}={'null' if section is None else section}: must be one of the files in conf/{group}")
    return section


def _without_alias(section: dict[str, Any]) -> dict[str, Any]:
    """`strategy.workers` is another name of `strategy.replicas`."""
    workers, replicas = section.pop("workers", None), section.get("replicas")
    if workers is not None and replicas not in (None, workers):
        raise UserError(f"strategy.workers={workers} and strategy.replicas={replicas} disagree; give one of them")
    return section if workers is None else {**section, "replicas": workers}


def _schema(group: str, section: dict[str, Any]) -> type:
    kinds = GROUPS[group]
    kind = section.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        raise UserError(f"{group}.kind={kind}: no such kind; there are {', '.join(kinds)}")
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


def values_of(config: Config, *scopes: Scope) -> dict[str, Any]:
    """The values of the keys in these scopes, by name; of all keys where none is given."""
    table = all_keys()
    return {name: value for name, value in flat_values(config) if not scopes or table[name].scope in scopes}


def save(config: Config, path: Path) -> None:
    """Write the resolved config."""
    path.write_text(OmegaConf.to_yaml(OmegaConf.create(asdict(config))))


def load(path: Path) -> Config:
    """Read what `save` wrote."""
    loaded = OmegaConf.load(path)
    assert isinstance(loaded, DictConfig)
    return parse(loaded)


def _package_directory(package: str, *parts: str) -> str:
    """The directory of an installed package's data, for conf/model/minilm.yaml."""
    found = importlib.util.find_spec(package)
    if found is None or found.origin is None:
        distribution = package.replace("_", "-")
        raise UserError(f"model.checkpoint: the package {distribution} is not installed; pip install {distribution}")
    return str(Path(found.origin).parent.joinpath(*parts))


OmegaConf.register_new_resolver("package_directory", _package_directory, replace=True)
OmegaConf.register_new_resolver("config_keys", lambda: describe_keys(), replace=True)


def describe_keys() -> str:
    """A line for each key that has limits or a unit, for `--help`."""
    lines = []
    for name, each in all_keys().items():
        parts = [", ".join(each.choices), each.limits(), each.unit]
        if words := "; ".join(part for part in parts if part):
            lines.append(f"{name}: {words}")
    return "\n".join(lines)

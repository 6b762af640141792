"""Conversion of the config that Hydra composed to a frozen `Config`, and of a `Config` to config.yaml and back.

A config has sections. A section that is a group, such as `model`, has the key `kind`, which decides the schema: the
dataclass with the keys of the section. Hydra's ConfigStore is not used: `extensions`, a key of the composed config,
names the modules that register further schemas, so the schemas are known only after composition. The schemas are then
merged as OmegaConf's structured configs.
"""

import importlib
import importlib.util
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import asdict, fields
from functools import cache
from pathlib import Path
from typing import TypeVar

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import ConfigKeyError, MissingMandatoryValue, OmegaConfBaseException

from common.config.interpolations import escape_interpolations
from common.config.keys import Scope, Value, find_section_schema, iterate_keys, list_keys
from common.config.legacy import (
    NO_AVERAGE,
    list_added_optimizer_keys,
    list_added_schedule_keys,
    list_added_task_keys,
)
from common.config.saved_config import Section, read_values
from common.config.schema import EXTENSIBLE_GROUPS, GROUPS, SECTIONS, Config, RunOptions
from common.config.task_kinds import OUTPUT_KEYS, OUTPUT_TASKS
from common.errors import UserError, first_line

CONF = str(Path(__file__).parents[2] / "conf")
T = TypeVar("T")


def parse_config(composed: DictConfig) -> Config:
    """Return a composed Hydra config as a `Config` whose values have the types that the schemas declare.

    Raises:
        UserError: a value is missing, a kind does not exist, or `extensions` names a module that does not exist.
        OmegaConfBaseException: a key is unknown, or its value has the wrong type. The error names the key.
    """
    return _parse_values(_to_section("", OmegaConf.to_container(composed, resolve=True)))


def _parse_values(values: Section) -> Config:
    extensions = values.get("extensions") or ()
    if isinstance(extensions, str):
        raise UserError(f"extensions={extensions}: must be a list; give 'extensions=[{extensions}]'")
    assert isinstance(extensions, Iterable)
    for module in extensions:
        _import_extension(module)
    sections: Section = {}
    for group in GROUPS:
        section = _to_section(group, values.pop(group, None))
        if group == "strategy":
            section = _resolve_alias(section)
        if group == "task" and section.get("kind") == "multi_output":
            section = _complete_outputs(section)
        sections[group] = _convert_section(group, _find_schema(group, section), section)
    for name, schema in SECTIONS.items():
        sections[name] = _convert_section(name, schema, _to_section(name, values.pop(name, None)))
    options = asdict(_convert_section("", RunOptions, values))
    return Config(**options, **sections)  # type: ignore[arg-type]


def _import_extension(module: str) -> None:
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):  # the module exists, but something that it imports does not
            raise
        raise UserError(f"extensions: no module {module}; add its directory to PYTHONPATH") from error


def _to_section(group: str, value: Value) -> Section:
    if not isinstance(value, dict):
        expected = f"one of the files in conf/{group}" if group in GROUPS else "a section of keys"
        raise UserError(f"{group}={'null' if value is None else value}: must be {expected}")
    return value


def _resolve_alias(section: Section) -> Section:
    """Return the strategy's section with `replicas` instead of its other name `workers`, and null instead of `auto`."""
    section |= {name: None for name in ("workers", "replicas") if section.get(name) == "auto"}
    workers, replicas = section.pop("workers", None), section.get("replicas")
    if workers is not None and replicas not in (None, workers):
        raise UserError(f"strategy.workers={workers} and strategy.replicas={replicas} disagree; give one of them")
    return section if workers is None else {**section, "replicas": workers}


def _complete_outputs(section: Section) -> Section:
    """Return the section of task=multi_output with all keys of the task of each output."""
    outputs: Section = {}
    for name, value in _to_section("task.outputs", section.get("outputs") or {}).items():
        prefix = f"task.outputs.{name}"
        if not (isinstance(name, str) and name.isidentifier()):
            raise UserError(f"{prefix}: the name of an output must be letters, digits and _; rename it")
        output = _to_section(prefix, value)
        kind = output.get("kind", "classification")
        if kind not in OUTPUT_TASKS:
            raise UserError(f"{prefix}.kind={kind}: no such kind for an output; there are {', '.join(OUTPUT_TASKS)}")
        defaults = _to_section(prefix, OmegaConf.to_container(OmegaConf.load(Path(CONF, "task", f"{kind}.yaml"))))
        task_values = {field: output[field] for field in output if field not in OUTPUT_KEYS}
        values = {"output": output.get("output"), "label": output.get("label"), "weight": output.get("weight", 1.0)}
        values |= {field: name for field in ("output", "label") if values[field] is None}
        _check_output(prefix, values)
        task = _convert_section(prefix, OUTPUT_TASKS[kind], {**defaults, **task_values})
        outputs[name] = {**values, **asdict(task)}
    return {**section, "outputs": outputs}


def _check_output(prefix: str, values: Section) -> None:
    """Raise UserError if `output`, `label` or `weight` of an output has the wrong type."""
    weight = values["weight"]
    is_number = isinstance(weight, int | float) and not isinstance(weight, bool)
    if not (is_number and 0 < weight < math.inf):  # type: ignore[operator]  # a number
        raise UserError(f"{prefix}.weight={weight}: must be a number above 0; remove the output if it has no loss")
    if not isinstance(values["output"], str | int) or isinstance(values["output"], bool):
        raise UserError(
            f"{prefix}.output={values['output']}: must be the name of an output of the model, or a position"
        )
    if not isinstance(values["label"], str):
        raise UserError(f"{prefix}.label={values['label']}: must be the name of an array")


def _find_schema(group: str, section: Section) -> type:
    kinds = GROUPS[group]
    kind = section.get("kind")
    if not isinstance(kind, str) or kind not in kinds:
        others = ", and those of the modules in `extensions`" if group in EXTENSIBLE_GROUPS else ""
        raise UserError(f"{group}.kind={kind}: no such kind; there are {', '.join(kinds)}{others}")
    return kinds[kind]


def _convert_section(group: str, schema: type[T], section: Section) -> T:
    """Return a section as an instance of its schema. Errors name the full key, such as train.steps."""
    values = dict(section)
    with _prefix_errors(group):
        node = _build_node(schema)  # type: ignore[arg-type]  # a class is hashable
    for schema_field in fields(schema):  # type: ignore[arg-type]
        if (section_schema := find_section_schema(schema_field)) is not None:
            name = f"{group}.{schema_field.name}"
            subsection = _to_section(name, values.pop(schema_field.name, None))
            node = deepcopy(node)  # OmegaConf.merge copies the node of a schema without subsections, which is shared
            node[schema_field.name] = _convert_section(name, section_schema, subsection)
    with _prefix_errors(group):
        settings = OmegaConf.to_object(OmegaConf.merge(node, escape_interpolations(values)))
    assert isinstance(settings, schema)
    return settings


@cache
def _build_node(schema: type) -> DictConfig:
    """Return OmegaConf's node of a schema, without values."""
    node = OmegaConf.structured(schema)
    OmegaConf.set_readonly(node, False)  # OmegaConf makes the nodes of frozen classes read-only
    assert isinstance(node, DictConfig)
    return node


@contextmanager
def _prefix_errors(group: str) -> Iterator[None]:
    """Put the name of the section before the key that an error of the body names."""
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


def collect_values(config: Config, *scopes: Scope) -> dict[str, Value]:
    """Return the values of the keys in these scopes, by full name, or of all keys if no scope is passed.

    The scope of a key, such as CURVE, says what must agree on its value: the runs, all hosts, or nothing.
    """
    return {name: value for name, key, value in iterate_keys(config) if not scopes or key.scope in scopes}


def save_config(config: Config, path: Path) -> None:
    """Write a resolved config as YAML, atomically: if a run is killed meanwhile, its previous config stays."""
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(OmegaConf.to_yaml(OmegaConf.create(_to_section("", escape_interpolations(asdict(config))))))
    partial.replace(path)


def load_config(path: Path) -> Config:
    """Read a config that `save_config` wrote. Import the modules that its key `extensions` names.

    Raises:
        UserError: the file is not a config, or `parse_config` refuses it.
    """
    try:
        return _parse_values(read_complete_values(path))
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {error.full_key}: {first_line(error.msg)}") from error


def read_complete_values(path: Path) -> Section:
    """Read the sections of a config.yaml with the defaults of keys that earlier versions lacked. Imports nothing."""
    values = read_values(path)
    groups = ("train", "model", "task", "optimizer", "schedule")
    train, model, task, optimizer, schedule = (values.get(group) for group in groups)
    if isinstance(train, dict):
        evaluated = {"evaluate_average": False, "evaluate_both": False}
        added = {"device": "auto", "micro_batches": 1, "predictions": False, **evaluated}
        values = {**values, "train": {**added, **train}}
    if isinstance(model, dict) and model.get("kind") == "custom":
        values = {**values, "model": {"keras": None, **model}}
    if isinstance(task, dict):
        values = {**values, "task": {**list_added_task_keys(task.get("kind")), **task}}
    if isinstance(schedule, dict):
        values = {**values, "schedule": {**list_added_schedule_keys(schedule.get("kind")), **schedule}}
    if isinstance(optimizer, dict):
        values = {**values, "optimizer": {**list_added_optimizer_keys(optimizer.get("kind")), **optimizer}}
    averages = {
        name: {**added, **section}
        for name, added in NO_AVERAGE.items()
        if isinstance(section := values.get(name, {}), dict)
    }
    return {"python": None, "metrics": [], **values, **averages}


def _find_package_directory(package: str, *parts: str) -> str:
    """Return a directory inside an installed package, for ${package_directory:...} in conf/model/minilm.yaml."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        distribution = package.replace("_", "-")
        raise UserError(f"model.checkpoint: the package {distribution} is not installed; pip install {distribution}")
    return str(Path(spec.origin).parent.joinpath(*parts))


def describe_keys(extensions: Iterable[str] = ()) -> str:
    """Return a line for each key that has choices, limits or a unit. `--help` shows the lines.

    If the kinds of a group describe a key differently, there is a line for each description, which names the kinds.
    """
    for module in extensions:
        _import_extension(module)
    kinds_by_description: dict[str, dict[str, list[str]]] = {}  # for each key, the kinds that have each description
    schemas = [(kind, schema, f"{group}.") for group, kinds in GROUPS.items() for kind, schema in kinds.items()]
    sections = [("", schema, f"{name}.") for name, schema in SECTIONS.items()]
    for kind, schema, prefix in (*schemas, *sections, ("", RunOptions, "")):
        for name, key in list_keys(schema, prefix):
            kinds_by_description.setdefault(name, {}).setdefault(key.describe(), []).append(kind)
    lines = []
    for name, descriptions in kinds_by_description.items():
        for description, kinds in descriptions.items():
            kinds_suffix = f" ({', '.join(kinds)})" if len(descriptions) > 1 else ""
            lines += [f"{name}{kinds_suffix}: {description}"] if description else []
    return "\n".join(lines)


# conf/ calls these functions as ${package_directory:PACKAGE,PARTS} and ${config_keys:EXTENSIONS}.
OmegaConf.register_new_resolver("package_directory", _find_package_directory, replace=True)
OmegaConf.register_new_resolver("config_keys", describe_keys, replace=True)

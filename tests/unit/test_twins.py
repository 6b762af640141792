"""Tests of the source text. The two sides have the same structure, and `common` depends on neither framework."""

import ast
import dataclasses
import re
from collections.abc import Iterator
from functools import cache

import pytest

from common.config.schema import Config, collect_keys
from common.config.strategies import STRATEGIES
from tests.conftest import ROOT, Python

SIDES = {"torch_impl": "PyTorch", "tf_impl": "TensorFlow"}
FRAMEWORKS = {"torch_impl": {"torch", "keras"}, "tf_impl": {"tensorflow", "keras", "keras_hub"}}
HEAVY = {"torch", "transformers", "tensorflow", "keras", "keras_hub", "jax"}
TOP_KEYS = {field.name for field in dataclasses.fields(Config)}
ONE_SIDED_KEYS = {
    f"strategy.{field.name}"
    for schema in STRATEGIES.values()
    if len(schema.sides) == 1
    for field in dataclasses.fields(schema)
    if field.name not in ("kind", "replicas")
}
ALL_KEYS = set(collect_keys())
# Functions that only look at the type of a section, or that compute the same for both sides.
CHECKS = {"isinstance", "require_settings", "build_rule", "compute_nadam_product"}
RULE_KEYS = {  # TensorFlow's side reads them in build_rule only
    f"optimizer.{name}" for name in ("dampening", "rho", "epsilon2", "beta2_decay", "clip_threshold")
}
SECTIONS = {"data", "model", "optimizer", "schedule", "strategy", "train"}
ONE_SIDED = {  # public names that only one side has, with the reason
    "tf_impl/optimizer.py": [
        "Optimizer.compute_scalars",  # float64 values that a compiled float32 step receives
        "Optimizer.correct_for_bias",
        "Optimizer.densify",  # only TensorFlow's gradients are sparse
    ],
    "torch_impl/optimizer.py": ["Optimizer.slot_tensors"],  # only PyTorch has strategies that divide slots over ranks
    "torch_impl/rule_optimizer.py": ["RuleOptimizer.step"],  # PyTorch has a class of optimizers, for all parameters
    "tf_impl/rule_optimizer.py": ["RuleOptimizer.compute_scalars", "RuleOptimizer.step"],
    "tf_impl/compilation.py": ["round_up_shapes"],  # torch.compile compiles for all shapes
    "torch_impl/step.py": ["collect_gradients"],  # PyTorch keeps gradients in parameters
    # Only TensorFlow compiles a step, for all replicas at once.
    "tf_impl/batches.py": ["SizedStep", "SizedStep.__init__", "build_input_signature", "select_replica_shard"],
    # The frameworks name the method differently, and a Keras layer does not know its name in the model.
    "torch_impl/aligned_layers.py": ["KeyedLayer", "AlignedLayer.forward", "AlignedLayer.extra_repr"],
    "tf_impl/aligned_layers.py": ["AlignedLayer.call"],
    "tf_impl/dropout.py": ["apply_dropout"],  # Keras's BERT drops without its layers
    "torch_impl/described_dropout.py": ["read_generators"],  # TensorFlow's graph shows whether a model draws
    # Keras's moving variance averages biased variances, and a compiled step averages the replicas' statistics.
    "torch_impl/batch_norm.py": [
        "RowAwareLayer",
        "RowAwareLayer.broadcast_real_rows",
        "average_statistics",
        "SynchronizedBatchNorm",
        "SynchronizedBatchNorm.forward",
    ],
    "tf_impl/batch_norm.py": ["AlignedBatchNorm", "AlignedBatchNorm.call", "build_statistics_averaging"],
    # A compiled step of TensorFlow averages the replicas' variables; DataParallel copies buffers to its replicas.
    "torch_impl/changing_buffers.py": [
        "average_buffers",
        "check_equal_buffers",
        "gather_replica_buffers",
        "copy_buffers",
    ],
    "tf_impl/changing_buffers.py": ["build_averaging", "build_buffer_check"],
    "torch_impl/input_adapter.py": ["channels_first"],  # only PyTorch has channels first
    "tf_impl/forward_trace.py": ["apply_layer"],  # Keras's BERT computes its layers without calling them
    "tf_impl/models/custom.py": [
        "CustomModel",
        "CustomModel.__init__",
        "CustomModel.call",
    ],  # PyTorch uses hooks
    # TensorFlow's strategies create their own process groups.
    "torch_impl/communication/rendezvous.py": ["init_process_group"],
    # PyTorch's ranks exchange their addresses through its store, TensorFlow's tasks through these messages.
    "tf_impl/communication/rendezvous.py": ["TaskAnnouncement", "RendezvousAnswer"],
    # TensorFlow has its server in C++.
    # TensorFlow's coordinator computes the learning rate itself, and has the averages of the weights.
    "torch_impl/strategies/parameter_server/coordinator.py": [
        "ParameterServer.averaged_weights",
        "ParameterServer.set_plateau_factor",
    ],
    "torch_impl/strategies/parameter_server/server.py": [
        "UpdateLog",
        "UpdateLog.__init__",
        "UpdateLog.record",
        "UpdateLog.find",
        "HeldGradient",
        "Server",
        "Server.__init__",
        "Server.serve",
    ],
    # The PyTorch class inherits its layers from Hugging Face's class. The Keras class holds a backbone of KerasHub.
    "torch_impl/models/bert.py": ["Bert.forward"],
    "tf_impl/models/bert.py": ["Bert.__init__", "Bert.call"],
    # Only PyTorch has a strategy that divides parameters, and a device whose tensors have no memory.
    "torch_impl/models/weights.py": ["build_with_weights"],
    "torch_impl/models/convnet.py": ["ConvNet.forward"],  # the frameworks name the method differently
    "tf_impl/models/convnet.py": ["ConvNet.call"],
}
DIFFERENT_PARAMETERS = {  # functions of both sides whose parameters differ, with the reason
    "batches.py:to_tensors": "TensorFlow's strategies place tensors themselves, and XLA compiles for each shape",
    "step.py:compute_outputs": "PyTorch uses autocast; Keras has a dtype policy and a training argument",
    "step.py:backward": "as compute_outputs; PyTorch keeps gradients in parameters, TensorFlow returns them",
    "step.py:compute_evaluation_sums": "as compute_outputs",
    "task.py:build_task_functions": "PyTorch sums over processes or threads, TensorFlow over its own replicas",
    "step.py:seed_dropout": "PyTorch has one generator, Keras one in each layer, which counts its draws",
    "step.py:evaluate": "TensorFlow's strategies reduce in a compiled step",
    "batch_norm.py:synchronize_batch_norm": "PyTorch sums over processes or threads, TensorFlow over its own replicas",
    "input_adapter.py:build_input_adapter": "only PyTorch has its channels at another axis than the data",
    "aligned_layers.py:align_dropout": "PyTorch's layers know their names, Keras's layers are paired with names",
    "aligned_layers.py:use_dropout_keys": "PyTorch's layers keep the keys, Keras's steps are traced once",
    "batch_norm.py:use_real_rows": "as use_dropout_keys",
    "sampled_losses.py:compute_losses": "Only TensorFlow compiles a step, which may not know the number of examples",
    "described_layers.py:describe_variable": "PyTorch has tensors, Keras has variables",
    "rule_optimizer.py:RuleOptimizer.__init__": "PyTorch's optimizers have groups of parameters",
    "rule_optimizer.py:RuleOptimizer.step": "as __init__: PyTorch's optimizers update all parameters at once",
    "clipping.py:clip_gradients": "a rank of PyTorch's fsdp has parts of gradients, and cannot compute norms",
    "optimizer.py:Optimizer.__init__": "a PyTorch parameter server has parameters without a model",
    "optimizer.py:Optimizer.update": "PyTorch keeps gradients in parameters, TensorFlow passes them as arguments",
    "strategies/parameter_server/server.py:serve": "TensorFlow's workers get all data from the coordinator",
}
# Files that only one side has, except strategies, contestants and recorders. CONTRIBUTING.md gives the reasons.
ONE_SIDED_FILES = {
    "torch_impl": [
        "attention.py",
        "collectives.py",
        "communication/allreduce.py",
        "communication/connection.py",
        "communication/cost_model.py",
        "communication/pipe_barrier.py",
        "communication/replica_sums.py",
        "communication/shared_memory.py",
        "communication/store.py",
        "communication/tour.py",
        "keras_batch_norm.py",
        "keras_dropout.py",
        "keras_float64.py",
        "keras_module.py",
        "keras_observation.py",
        "keras_backend.py",
        "native_muon.py",
        "models/linear.py",
        "state_dict.py",
        "unregistered_modules.py",
    ],
    "tf_impl": [
        "communication/mirrored_sums.py",
        "models/layout.py",
        "keras_two.py",
        "traced_step.py",
        "convolution.py",
        "fused_optimizer.py",
        "layout_optimizer.py",
        "native_optimizer.py",
        "models/bert_operations.py",
        "models/tensor_layout.py",
    ],
}


def read_sources(folder: str) -> dict[str, str]:
    """Return the text of every Python file below a folder, by its path relative to the folder."""
    return {str(path.relative_to(ROOT / folder)): path.read_text() for path in sorted((ROOT / folder).rglob("*.py"))}


def find_imports(source: str) -> set[str]:
    """Return the top-level packages that a file imports, also inside functions."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
    return {name.partition(".")[0] for name in modules}


def list_public_names(source: str) -> list[str]:
    """Return the public functions, classes and methods of a file in their order."""
    names = []
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            names.append(node.name)
            if isinstance(node, ast.ClassDef):
                methods = [child.name for child in node.body if isinstance(child, ast.FunctionDef)]
                names += [f"{node.name}.{name}" for name in methods if name == "__init__" or not name.startswith("_")]
    return names


def read_parameters(source: str) -> dict[str, list[str]]:
    """Return the parameters of every function and method with their defaults."""
    parameters = {}
    for node in ast.parse(source).body:
        functions = [("", node)]
        if isinstance(node, ast.ClassDef):
            functions = [(f"{node.name}.", child) for child in node.body]
        for prefix, function in functions:
            if isinstance(function, ast.FunctionDef):
                defaults = [f"={ast.unparse(default)}" for default in function.args.defaults]
                names = [argument.arg for argument in function.args.args]
                padded = [""] * (len(names) - len(defaults)) + defaults
                parameters[f"{prefix}{function.name}"] = [a + b for a, b in zip(names, padded, strict=True)]
    return parameters


class ConfigReads:
    """The config keys that a file reads through `config`, `self.config` and variables assigned from them.

    Attributes:
        aliases: The path in the config that an expression of the file stands for.
        keys: The keys.
        whole_sections: Where the file passes a whole section to a function. The keys read there cannot be seen.
    """

    def __init__(self, source: str) -> None:
        self.aliases: dict[str, tuple[str, ...]] = {"config": (), "self.config": (), "self.settings": ("strategy",)}
        tree = ast.parse(source)
        assigned: set[ast.AST] = set()
        for target, value in sorted(_assignments(tree), key=lambda pair: pair[1].lineno):
            path = self._path(value)
            if path is not None and (len(path) == 0 or path in {(section,) for section in SECTIONS}):
                self.aliases[ast.unparse(target)] = path
                assigned |= {target, value}
        owners = {node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        checked = {call.args[0] for call in calls if isinstance(call.func, ast.Name) and call.func.id in CHECKS}
        self.keys: set[str] = set()
        for match in (node for node in ast.walk(tree) if isinstance(node, ast.Match)):
            path = self._path(match.subject)
            if path is not None:  # the patterns look at the type of a section, and read keys
                checked.add(match.subject)
                patterns = [node for node in ast.walk(match) if isinstance(node, ast.MatchClass)]
                read = {".".join((*path, name)) for pattern in patterns for name in pattern.kwd_attrs}
                self.keys |= read & ALL_KEYS
        self.whole_sections: list[str] = []
        for node in ast.walk(tree):
            if not isinstance(node, ast.Attribute | ast.Name) or not isinstance(node.ctx, ast.Load):
                continue
            path = self._path(node)
            if path and len(path) == 1 and path[0] in SECTIONS and node not in owners | assigned | checked:
                self.whole_sections.append(f"line {node.lineno}: {ast.unparse(node)}")
            elif path and path[0] in TOP_KEYS and len(path) == (2 if path[0] in SECTIONS else 1):
                self.keys |= {".".join(path)} & ALL_KEYS

    def _path(self, node: ast.AST) -> tuple[str, ...] | None:
        if (text := _unparse(node)) in self.aliases:
            return self.aliases[text]
        if isinstance(node, ast.Attribute) and (owner := self._path(node.value)) is not None:
            return (*owner, node.attr)
        return None


def _unparse(node: ast.AST) -> str:
    """Return the source of a node, of a dotted name without ast.unparse, which is slow."""
    if isinstance(node, ast.Attribute):
        return f"{_unparse(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ast.unparse(node)


def _assignments(tree: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield the targets and values of assignments. Tuples are split."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            pairs = [(target, node.value) for target in node.targets]
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            pairs = [(node.target, node.value)]
        else:
            continue
        for target, value in pairs:
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                yield from zip(target.elts, value.elts, strict=False)
            else:
                yield target, value


@cache  # tests read the same files
def find_reads(source: str) -> ConfigReads:
    return ConfigReads(source)


def find_one_sided_keys(torch: dict[str, str], tf: dict[str, str], conf: str) -> dict[str, str]:
    """Return the keys that only one side reads, with the name of that side.

    Keys whose comment in conf names the side are left out, and so are keys of a strategy that only one side has.
    """
    torch_keys, tf_keys = ({key for source in side.values() for key in find_reads(source).keys} for side in (torch, tf))
    readers = {key: "PyTorch" if key in torch_keys else "TensorFlow" for key in torch_keys ^ tf_keys}
    return {
        key: reader
        for key, reader in readers.items()
        if key not in ONE_SIDED_KEYS | RULE_KEYS
        and not re.search(rf"^\s*{key.rpartition('.')[2]}:.*#.*\b{reader}\b", conf, re.MULTILINE)
    }


CONF = "\n".join(path.read_text() for path in sorted((ROOT / "conf").rglob("*.yaml")))


# One framework per process


@pytest.mark.slow
def test_common_imports_neither_framework(python: Python) -> None:
    code = (
        "import importlib, pkgutil, sys, common\n"
        "names = [module.name for module in pkgutil.walk_packages(common.__path__, 'common.')]\n"
        "for name in names: importlib.import_module(name)\n"
        "print(len(names), sorted(set(sys.argv[1:]) & set(sys.modules)))\n"
    )
    count, _, imported = python(code, *HEAVY).strip().partition(" ")
    assert int(count) >= 25
    assert imported == "[]"


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["common", "torch_impl", "tf_impl"])
def test_no_file_imports_the_other_side_or_its_framework(folder: str) -> None:
    """Imports inside functions count too."""
    allowed = FRAMEWORKS.get(folder, set()) | ({"transformers"} if folder == "torch_impl" else set())
    other = {side for side in SIDES if side != folder}
    for name, source in read_sources(folder).items():
        tokenizer = (
            {"transformers"} if name.startswith("contestants/") else set()
        )  # users of Keras import the tokenizer from it
        assert not find_imports(source) & ((HEAVY - allowed - tokenizer) | other), f"{folder}/{name}"


def test_imports_inside_functions_are_found() -> None:
    assert find_imports("import a.b\ndef f():\n    from c.d import e\n    import g as h, i") == {"a", "c", "g", "i"}


# The same structure


def test_the_two_sides_have_the_same_files() -> None:
    torch, tf = (
        {name for name in read_sources(side) if not name.startswith(("strategies/", "contestants/", "record/"))}
        - set(ONE_SIDED_FILES.get(side, []))
        for side in SIDES
    )
    assert torch == tf
    assert len(torch) >= 6


TWINS = sorted(
    name
    for name in read_sources("torch_impl").keys() & read_sources("tf_impl").keys()
    if not name.endswith("__init__.py") and not name.startswith("record/")  # CONTRIBUTING.md gives the reason
)


@pytest.mark.parametrize("name", TWINS)
def test_the_same_names_in_the_same_order(name: str) -> None:
    side_names = []
    for side in SIDES:
        names, one_sided = list_public_names((ROOT / side / name).read_text()), ONE_SIDED.get(f"{side}/{name}", [])
        assert set(one_sided) <= set(names), "a name of ONE_SIDED does not exist; remove it"
        side_names.append([name for name in names if name not in one_sided])
    assert side_names[0] == side_names[1]
    assert side_names[0]


def test_no_exception_names_a_missing_file() -> None:
    for path in ONE_SIDED:
        assert path.partition("/")[2] in TWINS, path
    for entry in DIFFERENT_PARAMETERS:
        assert entry.partition(":")[0] in TWINS, entry
    for side, names in ONE_SIDED_FILES.items():
        assert set(names) <= read_sources(side).keys(), side


def test_the_guide_for_contributors_lists_the_one_sided_files() -> None:
    table = (
        (ROOT / "CONTRIBUTING.md").read_text().partition("Only one side has these files:\n\n")[2].partition("\n\n")[0]
    )
    listed = re.findall(r"`((?:torch|tf)_impl/[\w/]+\.py)`", table)
    assert sorted(listed) == sorted(f"{side}/{name}" for side, names in ONE_SIDED_FILES.items() for name in names)


@pytest.mark.parametrize("name", TWINS)
def test_the_same_parameters(name: str) -> None:
    torch, tf = (read_parameters((ROOT / side / name).read_text()) for side in SIDES)
    both = [function for function in torch if function in tf and not re.search(r"(^|\.)_(?!_)", function)]
    differing = {f"{name}:{function}" for function in both if torch[function] != tf[function]}
    assert differing == {entry for entry in DIFFERENT_PARAMETERS if entry.startswith(f"{name}:")}


def test_parameters_are_read_with_their_defaults() -> None:
    source = "def f(a, b=1): 0\nclass A:\n    def g(self, x: int = 2) -> None: 0"
    assert read_parameters(source) == {"f": ["a", "b=1"], "A.g": ["self", "x=2"]}


def test_single_is_among_the_twins() -> None:
    assert "strategies/single.py" in TWINS


def test_public_names_are_in_order() -> None:
    source = "def b(): 0\nclass A:\n    def z(self): 0\n    def __init__(self): 0\n    def _y(self): 0\ndef _c(): 0"
    assert list_public_names(source) == ["b", "A", "A.z", "A.__init__"]


# The config


@pytest.mark.slow
def test_both_sides_read_the_same_keys() -> None:
    assert find_one_sided_keys(read_sources("torch_impl"), read_sources("tf_impl"), CONF) == {}
    assert len({key for source in read_sources("tf_impl").values() for key in find_reads(source).keys}) > 10


@pytest.mark.slow
@pytest.mark.parametrize("side", SIDES)
def test_no_section_is_passed_whole(side: str) -> None:
    for name, source in read_sources(side).items():
        assert find_reads(source).whole_sections == [], f"{side}/{name}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("side", "file", "planted", "key"),
    [
        ("torch_impl", "step.py", "def f(config): return config.train.max_length", "train.max_length"),
        ("tf_impl", "step.py", "def f(config): return config.model.dropout", "model.dropout"),
        ("tf_impl", "optimizer.py", "def f(config):\n    o = config.schedule\n    return o.kind", "schedule.kind"),
        ("torch_impl", "train.py", "def f(config): return config.run_name", "run_name"),
    ],
)
def test_a_key_that_one_side_alone_reads_is_seen(side: str, file: str, planted: str, key: str) -> None:
    both = {name: read_sources(name) for name in SIDES}
    both[side][file] += f"\n\n{planted}\n"
    assert find_one_sided_keys(both["torch_impl"], both["tf_impl"], CONF) == {key: SIDES[side]}
    name = key.rpartition(".")[2]
    assert find_one_sided_keys(both["torch_impl"], both["tf_impl"], f"x:\n  {name}: 1 # only in {SIDES[side]}") == {}
    assert find_one_sided_keys(both["torch_impl"], both["tf_impl"], f"{name}: 1 # only in the other side") == {
        key: SIDES[side]
    }


@pytest.mark.slow
def test_a_key_that_one_side_no_longer_reads_is_seen() -> None:
    torch = {
        name: source.replace("max_grad_norm", "weight_decay") for name, source in read_sources("torch_impl").items()
    }
    assert find_one_sided_keys(torch, read_sources("tf_impl"), CONF) == {"optimizer.max_grad_norm": "TensorFlow"}


@pytest.mark.parametrize(
    ("source", "keys"),
    [
        ("config.train.steps", {"train.steps"}),
        ("self.config.train.steps + config.run_dir", {"train.steps", "run_dir"}),
        ("settings = config.optimizer\nsettings.beta1 < settings.beta2", {"optimizer.beta1", "optimizer.beta2"}),
        ("self.s, self.c = config.optimizer, config\nself.s.kind\nself.c.train.seed", {"optimizer.kind", "train.seed"}),
        ("s = self.config.train\nt = s\nt.steps.bit_length()", {"train.steps"}),
        ("rate, s = f(config), self.config.train\ns.steps", {"train.steps"}),
        ("config.strategy.replicas = 1", set()),
        ("hf_config.train.steps; keras.config.train.steps; other.run_dir", set()),
    ],
)
def test_reads_are_seen_through_aliases(source: str, keys: set[str]) -> None:
    assert find_reads(source).keys == keys


@pytest.mark.parametrize("source", ["f(config.optimizer)", "s = config.model\nf(s)", "getattr(self.config.train, k)"])
def test_a_section_that_is_passed_whole_is_seen(source: str) -> None:
    assert len(find_reads(source).whole_sections) == 1

"""The layouts of parameters in Keras, for `optimizer.semantics=keras` of an optimizer that depends on them."""

from collections.abc import Mapping

from common.config.optimizers import OptimizerSettings
from common.errors import UserError
from common.map.transformation import parse_transformation
from common.models.hf_config import HfConfig
from common.models.spec import ModelSpec

Shapes = Mapping[str, tuple[int, ...]]


def list_keras_layouts(
    optimizer: OptimizerSettings, spec: ModelSpec, hf_config: HfConfig, shapes: Shapes
) -> dict[str, str]:
    """Return the steps from PyTorch's layout to Keras's for each trained parameter whose layout differs.

    Args:
        optimizer: The settings of the optimizer.
        spec: The spec of the model.
        hf_config: The config.json of the initial checkpoint.
        shapes: The shapes of the trained parameters in PyTorch.

    Raises:
        UserError: The model has no Keras side, or a variable of Keras is not one whole parameter.
    """
    advice = "set optimizer.semantics to aligned, or choose another optimizer"
    prefix = f"optimizer.kind={optimizer.kind}: Keras's update needs the layout of each variable in Keras"
    list_transformations = getattr(spec, "list_transformations", None)  # a spec of an extension may lack it
    texts = list_transformations(hf_config) if list_transformations else None
    if texts is None:
        raise UserError(f"{prefix}, and the model has no Keras side that names them; {advice}")
    layouts: dict[str, str] = {}
    paired: set[str] = set()
    for text in texts:
        transformation = parse_transformation(text)
        names = {source.name for source in transformation.sources} & shapes.keys()
        is_stack = transformation.joined in (",", "&")  # of a sum, one term is trained, and the others stay 0
        if names and (is_stack or len(names) > 1 or transformation.selects_rows):
            raise UserError(f"{prefix}, but one variable is {text}, not one whole parameter; {advice}")
        paired |= names
        for name in names:
            if transformation.steps:
                layouts[name] = " | ".join(map(str, transformation.steps))
    if unpaired := sorted(shapes.keys() - paired):
        raise UserError(f"{prefix}, and {unpaired[0]} has none; {advice}")
    return layouts

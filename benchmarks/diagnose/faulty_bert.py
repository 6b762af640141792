"""A BERT with a fault: its settings, and its config.json, which passes the fault to both sides."""

from dataclasses import dataclass

from common.config.keys import RUN, key
from common.config.models import MODELS, RandomBertSettings
from common.config.schema import Config
from common.data.cache import Cache
from common.models import bert
from common.models.bert import draw_parameter, get_parameter_shapes

__all__ = ["draw_parameter", "get_parameter_shapes"]  # imported for the users of this module, which is a model's `spec`


@dataclass(frozen=True)
class FaultyBertSettings(RandomBertSettings):
    """Settings of a faulty BERT.

    Attributes:
        fault: A fault of faulty_bert_torch.py and faulty_bert_tf.py; "none" is a correct BERT.
    """

    spec = __name__
    torch_module = "benchmarks.diagnose.faulty_bert_torch"
    tf_module = "benchmarks.diagnose.faulty_bert_tf"

    fault: str = key(RUN)


MODELS["faulty_bert"] = FaultyBertSettings


def build_hf_config(config: Config, cache: Cache, source: None) -> dict[str, object]:
    """Return BERT's config.json with the fault."""
    assert isinstance(config.model, FaultyBertSettings)
    return {**bert.build_hf_config(config, cache, source), "fault": config.model.fault}

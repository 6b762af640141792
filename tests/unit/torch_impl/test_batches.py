"""What a batch costs next to the step that it feeds."""

import statistics
import time
from pathlib import Path

from hydra import compose, initialize_config_dir

from common.config.schema import CONF, parse
from common.config.validate import validate
from common.data.batches import training_batches
from common.prepare import prepare, resolve


def test_a_batch_costs_less_than_two_percent_of_a_bert_mini_step(tmp_path: Path) -> None:
    from torch_impl.strategies.single import Single

    overrides = ["model=bert_mini", "data.train_examples=3000", "data.validation_examples=60", "train.steps=40"]
    with initialize_config_dir(CONF, version_base="1.3"):
        config = parse(compose("train", [*overrides, f"cache_dir={tmp_path}"]))
    validate(config, "torch")
    cache, initial = prepare(config)
    resolve(config, cache)
    strategy = Single(config, initial)
    gathering, training = [], []
    for batch in training_batches(cache.train, 32, 0, range(1, 41)):
        began = time.perf_counter()
        batch.shard(0, 1)
        gathering.append(time.perf_counter() - began)
        if batch.step <= 10:
            began = time.perf_counter()
            list(strategy.train([batch]))
            training.append(time.perf_counter() - began)
    share = statistics.median(gathering) / statistics.median(training)
    print(f"a batch takes {share:.2%} of a bert_mini step")
    assert share < 0.02

"""Checks of runs that train on a stream."""

import pytest

from common.config.stream_checks import check_stream
from common.config.validate import check_config
from common.errors import UserError
from tests.conftest import MakeConfig

KEYS = ("data=custom", "data.read=module:read", "data.stream=64", "data.stream_examples=200")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data.stream_examples=null"], "set both"),
        (["data.stream_examples=64"], "must be smaller than data.stream_examples"),
        (["train.global_batch_size=65"], "smaller than train.global_batch_size=65"),
        (["data.transforms=[horizontal_flip]"], "data.transforms: "),
        (["strategy=parameter_server"], "strategy=parameter_server does not read streams"),
    ],
)
def test_runs_that_cannot_read_streams_are_refused(make_config: MakeConfig, overrides: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        check_config(make_config(*KEYS, *overrides))


def test_several_hosts_are_refused(make_config: MakeConfig) -> None:
    with pytest.raises(UserError, match="several hosts does not read streams"):
        check_stream(make_config(*KEYS), 2)

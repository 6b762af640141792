"""Tests of the hooks of an optimizer, which are removed while PyTorch calls them."""

import torch

from torch_impl.record.update_hooks import UpdateHooks


def test_hooks_are_removed_within_the_hooks_beside_those_of_others() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    calls: list[str] = []
    hooks = UpdateHooks(
        optimizer, lambda args, kwargs: calls.append("before"), lambda: hooks.remove(), lambda other: None
    )
    other = optimizer.register_step_post_hook(lambda *_: calls.append("other"))
    optimizer.step()
    assert calls == ["before", "other"]
    assert list(optimizer._optimizer_step_post_hooks) == [other.id]
    assert not optimizer._optimizer_step_pre_hooks
    optimizer.step()
    assert calls == ["before", "other", "other"]


def test_hooks_of_two_recorders_are_removed_one_after_another() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    pairs: list[UpdateHooks] = []
    for index in range(2):
        remove = lambda index=index: pairs[index].remove()  # noqa: E731
        pairs.append(UpdateHooks(optimizer, lambda args, kwargs: None, remove, lambda other: None))
    optimizer.step()
    assert not optimizer._optimizer_step_pre_hooks
    optimizer.step()
    assert not optimizer._optimizer_step_post_hooks


def test_hooks_are_removed_before_the_update() -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    hooks = UpdateHooks(optimizer, lambda args, kwargs: hooks.remove(), lambda: None, lambda other: None)
    optimizer.register_step_pre_hook(lambda *_: None)
    optimizer.step()
    assert not optimizer._optimizer_step_post_hooks
    assert len(optimizer._optimizer_step_pre_hooks) == 1


def test_the_updates_of_other_optimizers_are_seen_until_the_hooks_are_removed() -> None:
    optimizer, other = (torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1) for _ in range(2))
    updated: list[torch.optim.Optimizer] = []
    hooks = UpdateHooks(optimizer, lambda args, kwargs: None, lambda: None, updated.append)
    other.step()
    assert updated == [other]
    hooks.remove()
    other.step()
    assert updated == [other]

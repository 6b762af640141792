"""Mistakes of scripts with two ranks, and pairs of scripts that compute the same."""

from tests.torch_mistakes.good_scripts import (
    ACCELERATE,
    BATCH_NORM,
    DDP,
    IN_TURN,
    LANGUAGE,
    LOOP,
    ODD_DATA,
    SINGLE,
    TWO_EPOCHS,
    TWO_RANKS,
    Edits,
    Mistake,
)

# Mistakes of scripts with two ranks; `good` and `edits` are those of the good and of the other script
TWO_RANK_MISTAKES: dict[str, Mistake] = {
    "mean of means": Mistake(LANGUAGE, {**IN_TURN, **TWO_RANKS}, "reduction", "mean_of_means", good=IN_TURN),
    "rate scaled by world size": Mistake(
        DDP, {"lr=0.1": "lr=0.1 * dist.get_world_size()"}, "hyperparameters", "learning_rate_scaled", good=SINGLE
    ),
    "not wrapped": Mistake(
        DDP, {"DistributedDataParallel(nn.Sequential(": "nn.Sequential(", "nn.Linear(16, 5)))": "nn.Linear(16, 5))"},
        "reduction", "not_reduced", good=SINGLE,
    ),
    "set_epoch forgotten": Mistake(
        DDP, {**TWO_EPOCHS, "        sampler.set_epoch(epoch)\n": ""}, "data", "epoch_not_reshuffled",
        good={**SINGLE, **TWO_EPOCHS, "batch_size=8": "batch_size=32"},
    ),
    "sampler padding counted": Mistake(DDP, ODD_DATA, "data", "sampler_padding", good={**SINGLE, **ODD_DATA}),
    "BatchNorm not synchronized": Mistake(
        DDP, BATCH_NORM, "activations", "batch_statistics", good={**SINGLE, **BATCH_NORM}
    ),
}  # fmt: skip

# Scripts that compute the same: name, edits and arguments of both
SAME_LENGTHS = {"torch.randint(4, LENGTH + 1, (48, 1))": "torch.full((48, 1), LENGTH)"}
PLAIN_ACCELERATE = {'mixed_precision="bf16"': 'mixed_precision="no"', **IN_TURN}
PLAIN_LOOP = {
    '    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision="bf16")\n': "",
    "    model, optimizer, loader, scheduler = accelerator.prepare(\n"
    "        model, optimizer, DataLoader(data, batch_size=8, shuffle=True), scheduler\n    )\n":
        "    loader = DataLoader(data, batch_size=8)\n",
    "    for tokens, labels in loader:\n        with accelerator.accumulate(model):\n":
        "    for index, (tokens, labels) in enumerate(loader):\n        if True:\n",
    "accelerator.backward(loss)\n            if accelerator.sync_gradients:\n"
    "                accelerator.clip_grad_norm_(model.parameters(), 1.0)\n":
        "(loss / 2).backward()\n            if index % 2 == 0:\n                continue\n"
        "            nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
}  # fmt: skip
CLEAN_PAIRS: dict[str, tuple[tuple[str, Edits, str], tuple[str, Edits, str]]] = {
    "accumulation": ((LANGUAGE, SAME_LENGTHS, ""), (LANGUAGE, SAME_LENGTHS, "--accumulate=2")),
    "decoupled Adam": (
        (LANGUAGE, {}, ""),
        (LANGUAGE, {"AdamW(groups, lr=1e-2)": "Adam(groups, lr=1e-2, decoupled_weight_decay=True)"}, ""),
    ),
    "foreach": ((LANGUAGE, {}, ""), (LANGUAGE, {"lr=1e-2": "lr=1e-2, foreach=True"}, "")),
    "fused": ((LANGUAGE, {}, ""), (LANGUAGE, {"lr=1e-2": "lr=1e-2, fused=True"}, "")),
    "log-softmax and NLL": (
        (LANGUAGE, {}, ""),
        (LANGUAGE, {"functional.cross_entropy(logits.flatten(0, 1),":
                    "functional.nll_loss(functional.log_softmax(logits.flatten(0, 1), -1),"}, ""),
    ),
    "attention by hand": (
        (LANGUAGE, {}, ""),
        (LANGUAGE, {
            "functional.scaled_dot_product_attention(query, key, value, mask)": "attend(query, key, value, mask)",
            "class Block": "def attend(query, key, value, mask):\n"
            "    scores = query @ key.mT / query.shape[-1] ** 0.5\n"
            "    return scores.masked_fill(~mask, float('-inf')).softmax(-1) @ value\n\n\nclass Block",
        }, ""),
    ),
    "loss module": (
        (LOOP, {}, ""),
        (LOOP, {"functional.cross_entropy(model(images), labels, label_smoothing=0.1)":
                "nn.CrossEntropyLoss(label_smoothing=0.1)(model(images), labels)"}, ""),
    ),
    "schedulers": (
        (LANGUAGE, {}, ""),
        (LANGUAGE, {"LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 4))":
                    "LinearLR(optimizer, start_factor=0.25, total_iters=3)"}, ""),
    ),
    "channels last": (
        (LOOP, {}, ""),
        (LOOP, {"    model = Net()\n": "    model = Net().to(memory_format=torch.channels_last)\n",
                "model(images)": "model(images.to(memory_format=torch.channels_last))"}, ""),
    ),
    "zero_grad first": (
        (LANGUAGE, {}, ""),
        (LANGUAGE, {"                optimizer.zero_grad()\n": "",
                    "            logits = model": "            optimizer.zero_grad()\n            logits = model"}, ""),
    ),
    "divided gradients": (
        (LANGUAGE, SAME_LENGTHS, ""),
        (LANGUAGE, {**SAME_LENGTHS, "(loss / args.accumulate)": "loss", "                nn.utils.clip":
                    "                for parameter in model.parameters():\n"
                    "                    parameter.grad /= args.accumulate\n                nn.utils.clip"},
         "--accumulate=2"),
    ),
    "Accelerate": ((ACCELERATE, PLAIN_ACCELERATE, ""), (ACCELERATE, PLAIN_LOOP, "")),
}  # fmt: skip

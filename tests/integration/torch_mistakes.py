"""Mistakes that people make in PyTorch scripts, as edits of the scripts in tests/scripts, with the causes to be named."""

from collections.abc import Mapping
from dataclasses import dataclass, field

LOOP, LANGUAGE, DDP = "torch_loop.py", "language_loop.py", "torch_ddp.py"
ACCELERATE, TRAINER, LIGHTNING = "accelerate_loop.py", "trainer.py", "lightning_module.py"
Edits = Mapping[str, str]  # new texts by old ones


@dataclass(frozen=True)
class Mistake:
    """A mistake in a script.

    Attributes:
        script: The script.
        edits: The edits that make the mistake.
        stage: The stage that names the cause.
        cause: The cause to be named first.
        good: Edits of both scripts, made before the others.
        arguments: Arguments of both scripts.
        consequences: Other causes that may be named, because they follow from the mistake.
    """

    script: str
    edits: Edits
    stage: str
    cause: str
    good: Edits = field(default_factory=dict)
    arguments: str = ""
    consequences: tuple[str, ...] = ()


# Edits of good scripts

RECORDER = "    if args.record:\n        Recorder(args.record, model, optimizer)\n"
NO_DROPOUT = {"nn.Dropout(0.1)": "nn.Dropout(0.0)"}
RGB = {
    **NO_DROPOUT,
    "torch.randn(96, 1, 12, 12)": "torch.rand(96, 3, 12, 12)",
    "nn.Conv2d(1, 4, 3)": "nn.Conv2d(3, 4, 3)",
    "enumerate(loader):\n": "enumerate(loader):\n        images = prepare(images)\n",
    "def main() -> None:": "def prepare(images):\n    return images\n\n\ndef main() -> None:",
}
NORMALIZED = {
    **RGB,
    "    return images\n": "    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])\n"
    "    return (images - mean[:, None, None]) / std[:, None, None]\n",
}
RESIZED = {
    **RGB,
    "torch.randn(96, 1, 12, 12)": "functional.avg_pool2d(torch.rand(96, 3, 36, 36), 5, 1, 2)",
    "    return images\n": '    return functional.interpolate(images, (12, 12), mode="bilinear", antialias=True)\n',
}
CLASS_WEIGHTS = {
    **NO_DROPOUT,
    "label_smoothing=0.1": "weight=torch.arange(1.0, 11.0) / 5.5",
}
SGD = {"AdamW(model.parameters(), lr=1e-2, weight_decay=0.01)": "SGD(model.parameters(), lr=1e-2, momentum=0.9)"}
NEW_HEAD = {"    optimizer = ": "    model.fc2 = nn.Linear(16, 10)\n    optimizer = "}
SMALL_BATCHES = {"batch_size=8 // args.accumulate": "batch_size=20"}
RESUMED = {
    RECORDER: "",
    "    for epoch in range(2):\n": "    for epoch in range(2):\n"
    "        if epoch == 1:\n"
    "            states = copy.deepcopy([part.state_dict() for part in (model, optimizer, scheduler)])\n"
    "            model = LanguageModel()\n"
    "            groups = [{**group, 'params': [p for p in model.parameters() if (p.ndim > 1) == (group is groups[0])]}\n"
    "                      for group in groups]\n"
    "            optimizer = torch.optim.AdamW(groups, lr=1e-2)\n"
    "            scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))\n"
    "            model.load_state_dict(states[0])\n"
    "            optimizer.load_state_dict(states[1])\n"
    "            scheduler.load_state_dict(states[2])\n"
    "            if args.record:\n"
    "                Recorder(args.record, model, optimizer)\n",
    "(step + 1) / 4": "(step + 1) / 10",
    "import argparse\n": "import argparse\nimport copy\n",
}
TOKENIZER = """def tokenize(text):
    text = text[:LENGTH]
    padding = [PADDING] * (LENGTH - len(text))
    return [*text, *padding]


def main() -> None:"""
LONG_TEXTS = {
    "def main() -> None:": TOKENIZER,
    "    texts[torch.arange(LENGTH) >= lengths] = PADDING\n":
        "    draw = torch.Generator().manual_seed(0)\n"
        "    texts = [torch.randint(1, WORDS, (2 * int(n) - 4,), generator=draw).tolist() for n in lengths]\n"
        "    texts = torch.tensor([tokenize(text) for text in texts])\n",
}
PADDED_TEXTS = {
    '"attention_mask": torch.ones(9, dtype=torch.long), ': '"attention_mask": (torch.arange(9) < 4 + i % 6).long(), ',
    "torch.randint(5, 60, (9,))": "torch.randint(5, 60, (9,)) * (torch.arange(9) < 4 + i % 6)",
}
EMA = {
    "    model.train()\n": "    model.train()\n"
    "    average = torch.optim.swa_utils.AveragedModel(\n"
    "        model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5))\n",
    "                scheduler.step()\n": "                scheduler.step()\n                average.update_parameters(model)\n",
    "            print(": "            with torch.no_grad():\n"
    "                functional.cross_entropy(model(ids[:, :-1], ids[:, :-1] != 0).flatten(0, 1), labels.flatten())\n"
    "            print(",
}

# The script for two ranks, in one process with batches of twice the size
SINGLE = {
    '    dist.init_process_group("gloo")\n': "",
    "DistributedSampler(data, seed=1)": "DistributedSampler(data, 1, 0, seed=1)",
    "batch_size=8": "batch_size=16",
    "DistributedDataParallel(nn.Sequential(": "nn.Sequential(",
    "nn.Linear(16, 5)))": "nn.Linear(16, 5))",
    " / dist.get_world_size()\n            dist.all_reduce(mean)\n            if dist.get_rank() == 0:\n    ": "\n",
    "    dist.destroy_process_group()\n": "",
}
IN_TURN = {"shuffle=True": "shuffle=False"}
TWO_RANKS = {
    "import torch\n": "import torch\nimport torch.distributed as dist\n",
    "    torch.manual_seed(0)\n": '    dist.init_process_group("gloo")\n    torch.manual_seed(0)\n',
    "    loader = DataLoader(TensorDataset(texts), batch_size=8 // args.accumulate, shuffle=False)\n":
        "    data = TensorDataset(texts)\n"
        "    sampler = torch.utils.data.DistributedSampler(data, shuffle=False)\n"
        "    loader = DataLoader(data, batch_size=4, sampler=sampler)\n",
    "    if args.record:\n": "    model = nn.parallel.DistributedDataParallel(model)\n    if args.record:\n",
}
TWO_EPOCHS = {"batch_size=8": "batch_size=16", "Recorder(args.record, model, optimizer)":
              "Recorder(args.record, model, optimizer, steps=5)"}
ODD_DATA = {"torch.randn(96, 20), torch.randint(0, 5, (96,))": "torch.randn(43, 20), torch.randint(0, 5, (43,))"}
BATCH_NORM = {"nn.LayerNorm(16)": "nn.BatchNorm1d(16)"}

MISTAKES: dict[str, Mistake] = {
    # Gradients
    "zero_grad missing": Mistake(
        LOOP, {"            optimizer.zero_grad()\n": ""}, "gradients", "zero_grad_missing"
    ),
    "zero_grad missing, no dropout": Mistake(
        LANGUAGE, {"                optimizer.zero_grad()\n": ""}, "gradients", "zero_grad_missing"
    ),
    "accumulation drops micro-batches": Mistake(
        LANGUAGE,
        {"            logits = model": "            optimizer.zero_grad()\n            logits = model"},
        "reduction", "dropped_micro_batches", arguments="--accumulate=2",
    ),
    "accumulation not divided": Mistake(
        LANGUAGE, {"(loss / args.accumulate)": "loss"}, "gradients", "accumulation_not_divided",
        arguments="--accumulate=4",
    ),
    "accumulation divided twice": Mistake(
        ACCELERATE, {"accelerator.backward(loss)": "accelerator.backward(loss / 2)"}, "gradients", "accumulation_divided_twice",
    ),
    "detached": Mistake(
        LANGUAGE, {"self.tokens(ids) +": "self.tokens(ids).detach() +"}, "gradients", "gradient",
    ),
    "clipping before unscaling": Mistake(
        LOOP,
        {
            "            scaler.unscale_(optimizer)\n": "",
            "model.parameters(), 0.5)\n": "model.parameters(), 0.5)\n            scaler.unscale_(optimizer)\n",
        },
        "reduction", "clipped_before_unscaling", arguments="--amp", good=NO_DROPOUT,
    ),
    "clipping per variable": Mistake(
        LANGUAGE,
        {"nn.utils.clip_grad_norm_(model.parameters(), 1.0)":
         "[nn.utils.clip_grad_norm_(parameter, 1.0) for parameter in model.parameters()]"},
        "reduction", "clipped_per_variable",
    ),
    "clipping after the step": Mistake(
        LANGUAGE,
        {
            "                nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n": "",
            "                optimizer.step()\n":
                "                optimizer.step()\n                nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
        },
        "reduction", "not_clipped",
    ),
    "clipping removed": Mistake(
        LANGUAGE, {"                nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n": ""},
        "hyperparameters", "not_clipped",
    ),
    "clipping by value": Mistake(
        LANGUAGE, {"clip_grad_norm_(model.parameters(), 1.0)": "clip_grad_value_(model.parameters(), 0.01)"},
        "hyperparameters", "clipped_by_value",
    ),
    "loss-scale steps skipped": Mistake(
        LOOP, {"init_scale=1024.0": "init_scale=2.0**24"}, "hyperparameters", "step_skipped", arguments="--amp",
        good={**NO_DROPOUT, "dtype=torch.bfloat16": "dtype=torch.float16"},
    ),
    "accumulated means of unequal batches": Mistake(
        LANGUAGE, {"type=int, default=1": "type=int, default=2"}, "gradients", "mean_of_means",
    ),
    # Optimizer and schedule
    "scheduler stepped twice": Mistake(
        LANGUAGE, {"scheduler.step()": "scheduler.step()\n                scheduler.step()"},
        "hyperparameters", "scheduler_stepped_twice",
    ),
    "scheduler stepped per epoch": Mistake(
        LANGUAGE,
        {
            "                scheduler.step()\n": "",
            '{loss.item():.17g}")\n': '{loss.item():.17g}")\n        scheduler.step()\n',
        },
        "hyperparameters", "no_schedule",
    ),
    "scheduler before optimizer": Mistake(
        LANGUAGE,
        {"                optimizer.step()\n                scheduler.step()\n":
         "                scheduler.step()\n                optimizer.step()\n"},
        "hyperparameters", "schedule_early",
    ),
    "scheduler not prepared": Mistake(
        ACCELERATE,
        {
            "    model, optimizer, loader, scheduler =": "    model, optimizer, loader =",
            "        model, optimizer, DataLoader(data, batch_size=8, shuffle=True), scheduler\n":
                "        model, optimizer, DataLoader(data, batch_size=8, shuffle=True)\n",
        },
        "hyperparameters", "scheduler_per_micro_batch",
    ),
    "interval of Lightning": Mistake(
        LIGHTNING, {', "interval": "step"': ""}, "hyperparameters", "no_schedule",
    ),
    "Adam epsilon": Mistake(LANGUAGE, {"lr=1e-2": "lr=1e-2, eps=1e-6"}, "hyperparameters", "epsilon"),
    "Adam betas": Mistake(LANGUAGE, {"lr=1e-2": "lr=1e-2, betas=(0.9, 0.95)"}, "hyperparameters", "betas"),
    "Adam for AdamW": Mistake(LANGUAGE, {"optim.AdamW": "optim.Adam"}, "hyperparameters", "weight_decay_coupled"),
    "decay on biases and norms": Mistake(
        LANGUAGE, {"AdamW(groups, lr=1e-2)": "AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)"},
        "hyperparameters", "weight_decay_on_biases",
    ),
    "nesterov": Mistake(LOOP, {"momentum=0.9": "momentum=0.9, nesterov=True"}, "hyperparameters", "nesterov", good=SGD),
    "decay of the Trainer": Mistake(TRAINER, {"weight_decay=0.01, ": ""}, "hyperparameters", "no_weight_decay"),
    "new head not in the optimizer": Mistake(
        LOOP,
        {"    model.fc2 = nn.Linear(16, 10)\n": "", RECORDER: "    model.fc2 = nn.Linear(16, 10)\n" + RECORDER},
        "hyperparameters", "missing_in_optimizer", good=NEW_HEAD,
    ),
    "frozen": Mistake(
        LOOP, {"    optimizer = ": "    model.conv1.requires_grad_(False)\n    optimizer = "},
        "hyperparameters", "not_trained",
    ),
    "resumed without optimizer": Mistake(
        LANGUAGE, {"            optimizer.load_state_dict(states[1])\n": ""}, "hyperparameters", "optimizer_state_lost",
        good=RESUMED,
    ),
    "resumed without scheduler": Mistake(
        LANGUAGE, {"            scheduler.load_state_dict(states[2])\n": ""}, "hyperparameters", "schedule_restarted",
        good=RESUMED,
    ),
    # Loss
    "double softmax": Mistake(
        LOOP, {"        return logits": "        return torch.softmax(logits, 1)"}, "loss", "double_softmax",
        good=NO_DROPOUT,
    ),
    "double softmax with dropout": Mistake(
        LOOP, {"        return logits": "        return torch.softmax(logits, 1)"}, "loss", "double_softmax",
    ),
    "softmax in the loss": Mistake(
        LOOP, {"cross_entropy(model(images)": "cross_entropy(model(images).softmax(1)"}, "loss", "double_softmax",
        good=NO_DROPOUT,
    ),
    "label smoothing": Mistake(LOOP, {", label_smoothing=0.1": ""}, "hyperparameters", "label_smoothing"),
    "label smoothing of the Trainer": Mistake(
        TRAINER, {"weight_decay=0.01": "weight_decay=0.01, label_smoothing_factor=0.1"},
        "loss", "label_smoothing",
    ),
    "padding counted": Mistake(LANGUAGE, {", ignore_index=PADDING": ""}, "hyperparameters", "ignored_labels"),
    "ignore_index wrong": Mistake(
        LANGUAGE, {"ignore_index=PADDING": "ignore_index=1"}, "hyperparameters", "ignored_labels"
    ),
    "padding kept in the mean": Mistake(
        LANGUAGE,
        {"ignore_index=PADDING)": "ignore_index=PADDING, reduction='none').mean()"}, "loss", "ignored_labels",
    ),
    "class weights missing": Mistake(
        LOOP, {"weight=torch.arange(1.0, 11.0) / 5.5": ""}, "loss", "class_weights", good=CLASS_WEIGHTS
    ),
    "class weights not normalized": Mistake(
        LOOP,
        {"weight=torch.arange(1.0, 11.0) / 5.5)": "weight=torch.arange(1.0, 11.0) / 5.5, reduction='none').mean()"},
        "loss", "class_weights", good=CLASS_WEIGHTS,
    ),
    "other class weights": Mistake(
        LOOP, {"weight=torch.arange(1.0, 11.0) / 5.5": "weight=5.5 / torch.arange(1.0, 11.0)"}, "data", "class_weights",
        good=CLASS_WEIGHTS,
    ),
    "sum for mean": Mistake(
        LOOP, {"label_smoothing=0.1": "label_smoothing=0.1, reduction='sum'"}, "hyperparameters", "loss_reduction"
    ),
    # Data
    "images 0 to 255": Mistake(LOOP, {"    return images\n": "    return images * 255\n"}, "data", "scaled_inputs", good=RGB),
    "BGR": Mistake(LOOP, {"    return images\n": "    return images[:, [2, 1, 0]]\n"}, "data", "channel_order", good=RGB),
    "mean and std of another data set": Mistake(
        LOOP,
        {"[0.485, 0.456, 0.406]": "[0.4914, 0.4822, 0.4465]", "[0.229, 0.224, 0.225]": "[0.2470, 0.2435, 0.2616]"},
        "data", "normalization", good=NORMALIZED,
    ),
    "resized without antialiasing": Mistake(
        LOOP, {", antialias=True": ""}, "data", "prepared_differently", good=RESIZED
    ),
    "truncation side": Mistake(
        LANGUAGE, {"text[:LENGTH]": "text[-LENGTH:]"}, "data", "truncation_side", good=LONG_TEXTS
    ),
    "padding side": Mistake(
        LANGUAGE, {"[*text, *padding]": "[*padding, *text]"}, "data", "padding_side", good=LONG_TEXTS
    ),
    "attention mask missing": Mistake(
        LANGUAGE, {", ids[:, :-1] != PADDING)": ", torch.ones_like(ids[:, :-1]) > 0)"}, "data", "array_of_ones"
    ),
    "attention mask of the Trainer missing": Mistake(
        TRAINER, {'"attention_mask": (torch.arange(9) < 4 + i % 6).long(), ': ""}, "data", "attention_mask_missing",
        good=PADDED_TEXTS,
    ),
    "last batch dropped": Mistake(
        LANGUAGE, {"shuffle=True)": "shuffle=True, drop_last=True)"}, "data", "last_batch_dropped", good=SMALL_BATCHES
    ),
    "other order": Mistake(
        LANGUAGE, {"shuffle=True)": "shuffle=True, generator=torch.Generator().manual_seed(1))"},
        "data", "order_of_examples",
    ),
    "shuffle forgotten": Mistake(LANGUAGE, {"shuffle=True": "shuffle=False"}, "data", "order_of_examples"),
    "labels not shifted": Mistake(LANGUAGE, {"labels = ids[:, 1:]": "labels = ids[:, :-1]"}, "data", "labels_shifted"),
    # Model
    "other seed": Mistake(
        LANGUAGE, {"    model = LanguageModel()": "    torch.manual_seed(1)\n    model = LanguageModel()"},
        "data", "order_of_examples", consequences=("other_weights",),
    ),
    "model.eval() left on": Mistake(LOOP, {"    model.train()\n": "    model.eval()\n"}, "hyperparameters", "evaluation_mode"),
    "dropout rate": Mistake(LOOP, {"nn.Dropout(0.1)": "nn.Dropout(0.5)"}, "hyperparameters", "dropout_rate"),
    "tanh GELU": Mistake(
        LANGUAGE, {"gelu(self.up(self.norm2(x)))": "gelu(self.up(self.norm2(x)), approximate='tanh')"},
        "activations", "activation",
    ),
    "GELU of the Trainer": Mistake(
        TRAINER, {"intermediate_size=32": "intermediate_size=32, hidden_act='gelu_new'"},
        "hyperparameters", "hidden_act",
    ),
    "norm epsilon": Mistake(
        LANGUAGE, {"        self.norm = nn.LayerNorm(WIDTH)": "        self.norm = nn.LayerNorm(WIDTH, eps=1e-12)"},
        "hyperparameters", "epsilon",
    ),
    "norm epsilon of the Trainer": Mistake(
        TRAINER, {"intermediate_size=32": "intermediate_size=32, layer_norm_eps=1e-5"}, "hyperparameters", "epsilon",
    ),
    "BatchNorm momentum": Mistake(
        LOOP, {"nn.BatchNorm2d(4)": "nn.BatchNorm2d(4, momentum=0.01)"}, "hyperparameters", "moving_statistics"
    ),
    "weight tying lost": Mistake(
        LANGUAGE, {"self.head.weight = self.tokens.weight": "self.head.weight = nn.Parameter(self.tokens.weight.clone())"},
        "hyperparameters", "tied_on_one_side",
    ),
    "causal mask forgotten": Mistake(
        LANGUAGE, {"dtype=torch.bool).tril()": "dtype=torch.bool)"}, "activations", "code_between_layers",
    ),
    "autocast on one side": Mistake(
        LANGUAGE,
        {"            logits = model(ids[:, :-1], ids[:, :-1] != PADDING)\n":
         '            with torch.autocast("cpu", dtype=torch.bfloat16):\n'
         "                logits = model(ids[:, :-1], ids[:, :-1] != PADDING)\n"},
        "environment", "precision",
    ),
    "model in bfloat16": Mistake(
        LANGUAGE, {"    model = LanguageModel()\n": "    model = LanguageModel().bfloat16()\n"}, "environment", "precision",
    ),
    "averaged weights trained": Mistake(
        LANGUAGE,
        {"            with torch.no_grad():\n": "            with torch.no_grad():\n"
         "                for weight, mean in zip(model.parameters(), average.module.parameters()):\n"
         "                    weight.copy_(mean)\n"},
        "optimizer", "weights_changed", good=EMA,
    ),
}  # fmt: skip

# A mistake that a record cannot show: the losses of the averaged weights are evaluated
EVALUATED_AVERAGE = Mistake(LANGUAGE, {"cross_entropy(model(ids[:, :-1], ids[:, :-1] != 0)": "cross_entropy(average(ids[:, :-1], ids[:, :-1] != 0)"}, "", "", good=EMA)

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
        DDP, {**TWO_EPOCHS, "        sampler.set_epoch(epoch)\n": ""}, "data", "same_order_in_each_epoch",
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
    "    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2, mixed_precision=\"bf16\")\n": "",
    "    model, optimizer, loader, scheduler = accelerator.prepare(\n"
    "        model, optimizer, DataLoader(data, batch_size=8, shuffle=True), scheduler\n    )\n":
        "    loader = DataLoader(data, batch_size=8)\n",
    "    for tokens, labels in loader:\n        with accelerator.accumulate(model):\n":
        "    for index, (tokens, labels) in enumerate(loader):\n        if True:\n",
    "accelerator.backward(loss)\n            if accelerator.sync_gradients:\n"
    "                accelerator.clip_grad_norm_(model.parameters(), 1.0)\n":
        "(loss / 2).backward()\n            if index % 2 == 0:\n                continue\n"
        "            nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n",
}
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
            "functional.scaled_dot_product_attention(*heads, attn_mask=mask)": "attend(*heads, mask)",
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

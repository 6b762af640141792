"""A mistake that people make in PyTorch scripts, as edits of a script in tests/scripts, and edits of good scripts."""

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
    "            parameters = [*model.parameters()]\n"
    "            groups = [{**group, 'params': [p for p in parameters if (p.ndim > 1) == (group is groups[0])]}\n"
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
    "    texts[torch.arange(LENGTH) >= lengths] = PADDING\n": "    draw = torch.Generator().manual_seed(0)\n"
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
    "                scheduler.step()\n": "                scheduler.step()\n"
    "                average.update_parameters(model)\n",
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
}  # fmt: skip
TWO_EPOCHS = {
    "batch_size=8": "batch_size=16",
    "Recorder(args.record, model, optimizer)": "Recorder(args.record, model, optimizer, steps=5)",
}
ODD_DATA = {"torch.randn(96, 20), torch.randint(0, 5, (96,))": "torch.randn(43, 20), torch.randint(0, 5, (43,))"}
BATCH_NORM = {"nn.LayerNorm(16)": "nn.BatchNorm1d(16)"}

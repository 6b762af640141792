"""Mistakes in losses, data and models."""

from tests.torch_mistakes.good_scripts import (
    CLASS_WEIGHTS,
    EMA,
    LANGUAGE,
    LONG_TEXTS,
    LOOP,
    NO_DROPOUT,
    NORMALIZED,
    PADDED_TEXTS,
    RESIZED,
    RGB,
    SMALL_BATCHES,
    TRAINER,
    Mistake,
)

MODEL_MISTAKES: dict[str, Mistake] = {
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
    "images 0 to 255": Mistake(
        LOOP, {"    return images\n": "    return images * 255\n"}, "data", "scaled_inputs", good=RGB
    ),
    "BGR": Mistake(
        LOOP, {"    return images\n": "    return images[:, [2, 1, 0]]\n"}, "data", "channel_order", good=RGB
    ),
    "mean and std of another data set": Mistake(
        LOOP,
        {"[0.485, 0.456, 0.406]": "[0.4914, 0.4822, 0.4465]", "[0.229, 0.224, 0.225]": "[0.2470, 0.2435, 0.2616]"},
        "data", "normalization", good=NORMALIZED,
    ),
    "resized without antialiasing": Mistake(
        LOOP, {", antialias=True": ""}, "data", "prepared_differently", good=RESIZED
    ),
    "mirrored": Mistake(LOOP, {"    return images\n": "    return images.flip(3)\n"}, "data", "reversed", good=RGB),
    "labels of other images": Mistake(
        LOOP, {"model(images), labels,": "model(images), labels.roll(1),"}, "data", "examples_swapped", good=NO_DROPOUT
    ),
    "batch used again": Mistake(
        LANGUAGE,
        {"            logits": "            ids = first = ids if index == 0 else first\n            logits"},
        "data", "repeated_batch",
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
    "model.eval() left on": Mistake(
        LOOP, {"    model.train()\n": "    model.eval()\n"}, "hyperparameters", "evaluation_mode"
    ),
    "BatchNorm frozen": Mistake(
        LOOP, {"    model.train()\n": "    model.train()\n    model.norm.eval()\n"},
        "hyperparameters", "evaluation_mode", good=NO_DROPOUT,
    ),
    "residual connection missing": Mistake(
        LANGUAGE, {"return x + self.down(": "return self.down("}, "activations", "residual"
    ),
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
        LANGUAGE,
        {"self.head.weight = self.tokens.weight": "self.head.weight = nn.Parameter(self.tokens.weight.clone())"},
        "hyperparameters", "tied_on_one_side",
    ),
    "causal mask forgotten": Mistake(
        LANGUAGE, {"dtype=torch.bool).tril()": "dtype=torch.bool)"}, "activations", "missing_operation",
    ),
    "autocast on one side": Mistake(
        LANGUAGE,
        {"            logits = model(ids[:, :-1], ids[:, :-1] != PADDING)\n":
         '            with torch.autocast("cpu", dtype=torch.bfloat16):\n'
         "                logits = model(ids[:, :-1], ids[:, :-1] != PADDING)\n"},
        "environment", "precision",
    ),
    "model in bfloat16": Mistake(
        LANGUAGE, {"    model = LanguageModel()\n": "    model = LanguageModel().bfloat16()\n"},
        "environment", "precision",
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
EVALUATED_AVERAGE = Mistake(
    LANGUAGE, {"cross_entropy(model(ids[:, :-1]": "cross_entropy(average(ids[:, :-1]"}, "", "", good=EMA
)

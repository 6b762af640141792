"""Mistakes in gradients, optimizers and schedules."""

from tests.torch_mistakes.good_scripts import (
    ACCELERATE,
    LANGUAGE,
    LIGHTNING,
    LOOP,
    NEW_HEAD,
    NO_DROPOUT,
    RECORDER,
    RESUMED,
    SGD,
    TRAINER,
    Mistake,
)

UPDATE_MISTAKES: dict[str, Mistake] = {
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
        ACCELERATE, {"accelerator.backward(loss)": "accelerator.backward(loss / 2)"},
        "gradients", "accumulation_divided_twice",
    ),
    "detached": Mistake(
        LANGUAGE, {"self.tokens(ids) +": "self.tokens(ids).detach() +"}, "gradients", "stopped_gradient",
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
        "hyperparameters", "clipped_per_variable",
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
    "two updates": Mistake(
        LANGUAGE, {"                optimizer.step()\n": 2 * "                optimizer.step()\n"},
        "hyperparameters", "updates_per_schedule_step", consequences=("update_without_backward",),
    ),
    "weights clipped": Mistake(
        LANGUAGE,
        {"                scheduler.step()\n": "                scheduler.step()\n"
         "                for parameter in model.parameters():\n"
         "                    parameter.data.clamp_(-0.5, 0.5)\n"},
        "optimizer", "clipped_weights",
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
}  # fmt: skip

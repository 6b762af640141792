"""DistributedDataParallel with the module of `model=custom`, in a loop as its user would write it.

torchrun starts a process for each replica.
"""

import itertools

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.functional import cross_entropy, mse_loss
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from common.bench.contestant_task import RowWriter, parse_custom_arguments
from common.map.factory import call_factory

args = parse_custom_arguments()
torch.manual_seed(args.seed)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
rank, world_size = dist.get_rank(), dist.get_world_size()
if device.type == "cuda":
    torch.cuda.set_device(rank)

arrays = {name: torch.from_numpy(array) for name, array in np.load(args.data).items()}
for name in args.channels:
    arrays[name] = arrays[name].movedim(-1, 1).contiguous()
arrays = {name: array if array.is_floating_point() else array.long() for name, array in arrays.items()}
labels = arrays.pop("labels")
names = list(arrays)
dataset = TensorDataset(*arrays.values(), labels)
sampler: DistributedSampler = DistributedSampler(dataset, shuffle=True, seed=args.seed, drop_last=True)
loader: DataLoader = DataLoader(dataset, args.global_batch_size // world_size, sampler=sampler, drop_last=True)
model = call_factory("model.torch", args.model, args.arguments).to(device)
model = DistributedDataParallel(model, device_ids=[rank] if device.type == "cuda" else None)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
writer = RowWriter(args) if rank == 0 else None


def trim(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Shorten inputs of different lengths, which the file pads to its longest example, to the longest of a batch."""
    for name in args.ragged:
        length = int(batch[f"{name}_mask"].sum(1).max())
        batch |= {key: batch[key][:, :length] for key in (name, f"{name}_mask")}
    return batch


def compute_loss(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the mean squared error of numbers, or the mean cross-entropy of classes."""
    if args.loss == "mse":
        return mse_loss(outputs.flatten(), labels.flatten())
    return cross_entropy(outputs.flatten(0, -2), labels.flatten())


model.train()
for epoch in itertools.count():
    sampler.set_epoch(epoch)
    for batch in loader:
        *inputs, batch_labels = (tensor.to(device) for tensor in batch)
        batch_inputs = trim(dict(zip(names, inputs, strict=True)))
        with torch.autocast(device.type, torch.bfloat16, enabled=args.precision == "bfloat16"):
            loss = compute_loss(model(**batch_inputs), batch_labels)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if writer is not None:
            writer.write(0)  # nothing here knows which tokens are padding
            if writer.step % 10 == 0:
                print(f"step {writer.step}: loss {loss.item():.4f}", flush=True)

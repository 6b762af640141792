"""Train a classifier under DistributedDataParallel: torchrun --nproc-per-node 2 torch_ddp.py [--record DIR]."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from torch_impl.record import Recorder


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--record")
    args = parser.parse_args()

    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(96, 20), torch.randint(0, 5, (96,)))
    sampler: DistributedSampler = DistributedSampler(data, seed=1)
    loader = DataLoader(data, batch_size=8, sampler=sampler)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(20, 16), nn.LayerNorm(16), nn.GELU(), nn.Linear(16, 5)))
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if args.record:
        Recorder(args.record, model, optimizer)

    for epoch in range(2):
        sampler.set_epoch(epoch)
        for features, labels in loader:
            optimizer.zero_grad()
            loss = criterion(model(features), labels)
            loss.backward()
            optimizer.step()
            mean = loss.detach() / dist.get_world_size()
            dist.all_reduce(mean)
            if dist.get_rank() == 0:
                print(f"loss {mean.item():.17g}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

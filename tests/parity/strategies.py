"""The strategies of the parity tests, and their settings."""

DDP, BY_HAND = "strategy=ddp strategy.replicas=3", "strategy=allreduce strategy.replicas=3"
SERVERS = "strategy=parameter_server strategy.parameter_servers=2 strategy.max_staleness=0"
SPLIT, PADDED = "train.padding=micro_batches", "train.padding=global"  # without one of these, nothing is padded
STRATEGIES = {
    "torch-single": "strategy=single",
    "torch-dp-2": "strategy=dp strategy.replicas=2",
    "torch-dp-4": "strategy=dp strategy.replicas=4 train.micro_batches=2",
    "torch-ddp-2": "strategy=ddp strategy.replicas=2",
    "torch-ddp-4": "strategy=ddp strategy.replicas=4",
    "tf-single": "strategy=single",
    "tf-mirrored-2": "strategy=mirrored strategy.replicas=2",
    "tf-mirrored-4": "strategy=mirrored strategy.replicas=4 train.micro_batches=3",
    "torch-dp-3-in_forward": "strategy=dp strategy.replicas=3 strategy.loss=in_forward strategy.output_device=1 "
    f"{PADDED}",
    "torch-dp-3-criterion": f"strategy=dp strategy.replicas=3 strategy.loss=criterion {SPLIT}",
    "torch-ddp-3": DDP,
    "torch-ddp-3-after": f"{DDP} strategy.overlap=false strategy.bucket_cap_mb=0.1 strategy.accumulate=3 {SPLIT}",
    "torch-ddp-3-static": f"{DDP} strategy.static_graph=true strategy.gradient_as_bucket_view=false",
    "torch-allreduce-3-ring": f"{BY_HAND} strategy.algorithm=ring strategy.bucket_cap_mb=0.5 {SPLIT}",
    "torch-allreduce-3-gather": f"{BY_HAND} strategy.algorithm=gather_broadcast strategy.overlap=false",
    "torch-allreduce-3-all": f"{BY_HAND} strategy.algorithm=all_to_all strategy.bucket_cap_mb=null",
    "torch-allreduce-3-doubling": f"{BY_HAND} strategy.algorithm=recursive_doubling",
    "torch-allreduce-3-native": f"{BY_HAND} strategy.algorithm=native strategy.bucket_cap_mb=1",
    "torch-zero-3": "strategy=zero strategy.replicas=3",
    "torch-fsdp-3": "strategy=fsdp strategy.replicas=3 strategy.reshard_after_forward=false",
    "torch-fsdp-4": "strategy=fsdp strategy.replicas=4 strategy.copies=2",
    "torch-parameter_server-3": f"{SERVERS} strategy.workers=3",
    "torch-ddp-2-compiled": "strategy=ddp strategy.replicas=2 train.compile=true",
    "tf-central_storage-3": f"strategy=central_storage strategy.replicas=3 {SPLIT}",
    "tf-multiworker-2": "strategy=multiworker strategy.workers=2 strategy.communication=ring train.micro_batches=2 "
    f"{PADDED}",
    "tf-multiworker-3": "strategy=multiworker strategy.workers=3 strategy.bytes_per_pack=100000",
    "tf-parameter_server-3": f"{SERVERS} strategy.workers=3",
    "tf-mirrored-2-compiled": "strategy=mirrored strategy.replicas=2 train.compile=true",
    "torch-single-compiled": "strategy=single train.compile=true",
    "tf-single-compiled": "strategy=single train.compile=true",
}

#!/usr/bin/env bash
# bash deploy/ray_job.sh, in the repository, where `ray job submit` finds the cluster: RAY_API_SERVER_ADDRESS=http://HEAD:8265
# Train on all nodes of a Ray cluster, every one of which has the packages of pyproject.toml. Ray copies this directory to
# the nodes. Where a node is lost the run restarts on those that are left; run_dir is on storage that all nodes see.
# ray job stop ends it with a checkpoint, for which it has 30 s in place of Ray's 3. The same command resumes it.
exec ray job submit --working-dir . --runtime-env-json '{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "30"}}' -- \
    python -m torch_impl.train strategy=ddp cluster=ray train.max_restarts=5 run_dir=/runs/train resume=auto

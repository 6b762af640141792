#!/usr/bin/env bash
# bash deploy/ray_job.sh, in the repository, where `ray job submit` finds the cluster: RAY_API_SERVER_ADDRESS=http://HEAD:8265
# Train on all nodes of a Ray cluster. Every node needs the packages of pyproject.toml. Ray copies this directory to the
# nodes. If a node is lost, the run restarts on the others; run_dir is on storage that all nodes see. `ray job stop` ends
# the run with a checkpoint, for which it has 30 s instead of Ray's 3. The same command resumes the run.
exec ray job submit --working-dir . --runtime-env-json '{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "30"}}' -- \
    python -m torch_impl.train strategy=ddp cluster=ray train.max_restarts=5 run_dir=/runs/train resume=auto

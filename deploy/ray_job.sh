#!/usr/bin/env bash
# RAY_API_SERVER_ADDRESS=http://HEAD:8265 bash deploy/ray_job.sh, in the repository
# Train on all nodes of a Ray cluster. Every node needs the packages of pyproject.toml. Ray copies this directory to the
# nodes. If a node is lost, the run restarts on the remaining nodes. run_dir must be on storage that all nodes share.
# `ray job stop` ends the run. The run then has 30 seconds, instead of Ray's 3, to save a checkpoint. The same command
# resumes it.
exec ray job submit --working-dir . --runtime-env-json '{"env_vars": {"RAY_JOB_STOP_WAIT_TIME_S": "30"}}' -- \
    python -m torch_impl.train strategy=ddp cluster=ray train.max_restarts=5 run_dir=/runs/train resume=auto

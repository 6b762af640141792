"""An extension for runs of strategy=multiworker that take turns: their workers may be silent for an hour.

MultiWorkerMirroredStrategy gives up a worker that has sent no heartbeat for ten seconds, and a worker that is stopped
while others have their turn sends none. Therefore this extension configures the coordination service, which checks the
heartbeats, before the strategy would do it.
"""

import json
import os

SILENT_MILLISECONDS = 3_600_000

if "TF_CONFIG" in os.environ:  # only the workers have it, not the command that starts them
    from tensorflow.compiler.xla.tsl.protobuf import coordination_config_pb2
    from tensorflow.python.eager import context

    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        heartbeat_timeout_in_ms=SILENT_MILLISECONDS,
        coordinated_jobs=[
            coordination_config_pb2.CoordinatedJob(
                name="worker", num_tasks=len(json.loads(os.environ["TF_CONFIG"])["cluster"]["worker"])
            )
        ],
    )

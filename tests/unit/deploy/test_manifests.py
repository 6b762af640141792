"""The files of deploy/ are valid for Kubernetes, JobSet and Kubeflow, and agree with each other."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from kubeflow_trainer_api import models

from common.cluster.engines.kubernetes import VARIABLES
from common.config.compose import CONF

DEPLOY = Path(__file__).parents[3] / "deploy"
OLDEST = "1.33"  # the first version in which every feature of job.yaml is stable
JOBS = {"job.yaml": "Job", "jobset.yaml": "JobSet", "trainjob.yaml": "TrainingRuntime"}
# Kubeflow publishes its schemas, and those of JobSet, as models of pydantic.
MODELS = {
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): models.JobsetV1alpha2JobSet,
    ("trainer.kubeflow.org/v1alpha1", "TrainingRuntime"): models.TrainerV1alpha1TrainingRuntime,
    ("trainer.kubeflow.org/v1alpha1", "TrainJob"): models.TrainerV1alpha1TrainJob,
}
# The path of a mapping in an object, and its changed values. The value None removes a key.
MISTAKES: dict[str, list[tuple[tuple[str | int, ...], dict[str, Any]]]] = {
    "JobSet": [
        (("spec",), {"replicatedJob": []}),
        (("spec",), {"failurePolicy": {"maxRestart": 3}}),
        (("spec", "replicatedJobs", 0), {"replica": 1}),
        (("spec", "replicatedJobs", 0), {"replicas": "1"}),
        (("spec", "replicatedJobs", 0), {"name": None}),
        (("spec", "replicatedJobs", 0, "template", "spec"), {"completion": 2}),
    ],
    "TrainingRuntime": [
        (("spec",), {"mlPolicies": {}}),
        (("spec", "mlPolicy"), {"numNode": 1}),
        (("spec", "mlPolicy", "torch"), {"numProcPerNodes": 1}),
        (("spec", "template", "spec", "replicatedJobs", 0), {"template": None}),
    ],
    "TrainJob": [
        (("spec",), {"runtimeReference": {}}),
        (("spec",), {"runtimeRef": None}),
        (("spec", "trainer"), {"numNode": 2}),
        (("spec", "trainer"), {"numNodes": "2"}),
        (("spec", "trainer", "resourcesPerNode"), {"limit": {}}),
    ],
}
EXIT_CODES = {2: "FailJob", 143: "Ignore"}


def read_objects(name: str) -> dict[str, dict[str, Any]]:
    """Return the objects of a manifest, by kind."""
    objects = yaml.safe_load_all((DEPLOY / "kubernetes" / name).read_text())
    return {manifest["kind"]: manifest for manifest in objects}


def read_job(name: str) -> dict[str, Any]:
    """Return the spec of the Job in a manifest."""
    spec = read_objects(name)[JOBS[name]]["spec"]
    if name == "job.yaml":
        return dict(spec)
    (job,) = (spec["template"]["spec"] if name == "trainjob.yaml" else spec)["replicatedJobs"]
    return dict(job["template"]["spec"])


def read_arguments(name: str) -> list[str]:
    """Return the arguments of the command that a pod starts."""
    (container,) = read_job(name)["template"]["spec"]["containers"]
    return list((read_objects(name)["TrainJob"]["spec"]["trainer"] if name == "trainjob.yaml" else container)["args"])


def check(manifest: dict[str, Any]) -> None:
    """Raise ValidationError if Kubernetes would reject an object."""
    kubernetes_validate.validate(manifest, OLDEST, strict=True)


def check_custom(manifest: dict[str, Any]) -> None:
    """Raise ValueError if JobSet or Kubeflow would reject an object or ignore a part of it."""
    model: Callable[[dict[str, Any]], Any] = MODELS[manifest["apiVersion"], manifest["kind"]].from_dict
    if model(manifest).to_dict() != manifest:
        raise ValueError("a field is not in the schema")


@pytest.mark.parametrize("name", ["volume.yaml", "job.yaml"])
def test_kubernetes_accepts_every_object(name: str) -> None:
    for manifest in read_objects(name).values():
        check(manifest)


@pytest.mark.parametrize("name", JOBS)
def test_kubernetes_accepts_the_job_of_every_manifest(name: str) -> None:
    job = {"parallelism": 2, "completions": 2, **read_job(name)}  # a TrainJob sets them
    check({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train"}, "spec": job})


def test_an_object_that_kubernetes_would_reject_is_found() -> None:
    changed = read_objects("job.yaml")["Job"]
    changed["spec"]["podFailurePolicy"]["rules"][0]["onExitCode"] = {}
    with pytest.raises(kubernetes_validate.ValidationError):
        check(changed)


@pytest.mark.parametrize("name", ["jobset.yaml", "trainjob.yaml"])
def test_jobset_and_kubeflow_accept_every_object(name: str) -> None:
    for manifest in read_objects(name).values():
        check_custom(manifest)


@pytest.mark.parametrize(
    ("kind", "path", "mistake"), [(kind, *mistake) for kind, mistakes in MISTAKES.items() for mistake in mistakes]
)
def test_an_object_that_jobset_or_kubeflow_would_reject_is_found(
    kind: str, path: tuple[str | int, ...], mistake: dict[str, Any]
) -> None:
    changed = read_objects("jobset.yaml" if kind == "JobSet" else "trainjob.yaml")[kind]
    mapping: Any = changed
    for key in path:
        mapping = mapping[key]
    mapping |= mistake
    for key in [key for key, value in mistake.items() if value is None]:
        del mapping[key]
    with pytest.raises(ValueError):
        check_custom(changed)


@pytest.mark.parametrize("name", JOBS)
def test_the_manifests_agree(name: str) -> None:
    """The three jobs have the required settings, and they have the same ones."""
    job = read_job(name)
    assert job["completionMode"] == "Indexed"
    rules = job["podFailurePolicy"]["rules"]
    actions = {value: rule["action"] for rule in rules for value in rule.get("onExitCodes", {}).get("values", [])}
    assert actions == EXIT_CODES
    assert rules[-1] == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    reference = read_job("job.yaml")
    assert rules == reference["podFailurePolicy"]["rules"]
    assert read_arguments(name) == read_arguments("job.yaml")
    pod = job["template"]["spec"]
    assert pod["restartPolicy"] == "Never", "a podFailurePolicy requires it"
    for key in ("volumes", "securityContext", "terminationGracePeriodSeconds"):
        assert pod[key] == reference["template"]["spec"][key]
    (volume, *_) = pod["volumes"]
    assert (
        volume["persistentVolumeClaim"]["claimName"]
        == read_objects("volume.yaml")["PersistentVolumeClaim"]["metadata"]["name"]
    )
    assert {"name": volume["name"], "mountPath": "/runs"} in pod["containers"][0]["volumeMounts"]


@pytest.mark.parametrize(
    ("name", "first"), [("job.yaml", "{name}-0.{subdomain}"), ("jobset.yaml", "{name}-node-0-0.{name}")]
)
def test_the_variables_of_the_engine(name: str, first: str) -> None:
    job, pod = read_job(name), read_job(name)["template"]["spec"]
    environment = {variable["name"]: variable["value"] for variable in pod["containers"][0]["env"]}
    assert environment.keys() == {*VARIABLES} - {"JOB_COMPLETION_INDEX"}, "Kubernetes sets JOB_COMPLETION_INDEX"
    assert environment["PET_NNODES"] == str(job["completions"]) == str(job["parallelism"])
    job_name = read_objects(name)[JOBS[name]]["metadata"]["name"]
    assert environment["PET_MASTER_ADDR"] == first.format(name=job_name, subdomain=pod.get("subdomain"))


def test_the_service_has_the_pods_of_the_job() -> None:
    manifests = read_objects("job.yaml")
    service, job = manifests["Service"], manifests["Job"]
    assert service["metadata"]["name"] == job["spec"]["template"]["spec"]["subdomain"]
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert service["spec"]["clusterIP"] == "None"


def test_kubeflow_sets_the_variables_of_a_trainjob() -> None:
    manifests = read_objects("trainjob.yaml")
    runtime, train_job = manifests["TrainingRuntime"], manifests["TrainJob"]["spec"]
    assert train_job["runtimeRef"]["kind"] == "TrainingRuntime"
    assert train_job["runtimeRef"]["name"] == runtime["metadata"]["name"]
    assert "torch" in runtime["spec"]["mlPolicy"]
    (job,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    assert job["name"] == job["template"]["spec"]["template"]["spec"]["containers"][0]["name"] == "node"
    assert job["template"]["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}


def test_the_commands_use_an_engine_that_exists() -> None:
    tasks = {
        "kubernetes": " ".join(read_arguments("job.yaml")),
        "skypilot": yaml.safe_load((DEPLOY / "skypilot.yaml").read_text())["run"],
        "slurm": (DEPLOY / "slurm.sbatch").read_text(),
        "ray": (DEPLOY / "ray_job.sh").read_text(),
    }
    for engine, command in tasks.items():
        assert f"cluster={engine}" in command.split() and "resume=auto" in command.split()
        assert (Path(CONF) / "cluster" / f"{engine}.yaml").exists()


@pytest.mark.parametrize("name", ["slurm.sbatch", "ray_job.sh"])
def test_the_scripts_are_bash(name: str) -> None:
    completed = subprocess.run(["bash", "-n", str(DEPLOY / name)], capture_output=True, text=True)
    assert (completed.returncode, completed.stderr) == (0, "")


def test_the_image_has_every_package() -> None:
    """The Dockerfile copies every file that its build may see, and all packages are among them."""
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    copied = [name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]]
    allowed = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert [f"!{name}" for name in copied] == [line for line in allowed if line.startswith("!")]
    assert {"common", "conf", "torch_impl", "tf_impl", "pyproject.toml", "README.md"} <= set(copied)
    assert all((DEPLOY.parent / name).exists() for name in copied)

"""The deployment files against the schemas of those who read them, against each other, and against the lock."""

import copy
import re
import shlex
import tomllib
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "cluster" / "deploy"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
KUBERNETES = "1.33"

# The fields that a ray.io/v1 manifest may have: KubeRay v1.7, ray-operator/apis/ray/v1/{rayjob,raycluster}_types.go.
RAYJOB_FIELDS = {
    "activeDeadlineSeconds": int,
    "backoffLimit": int,
    "clusterSelector": dict,
    "deletionStrategy": dict,
    "entrypoint": str,
    "entrypointNumCpus": float,
    "entrypointNumGpus": float,
    "entrypointResources": str,
    "jobId": str,
    "managedBy": str,
    "metadata": dict,
    "preRunningDeadlineSeconds": int,
    "rayClusterSpec": dict,
    "runtimeEnvYAML": str,
    "shutdownAfterJobFinishes": bool,
    "submissionMode": str,
    "submitterConfig": dict,
    "submitterPodTemplate": dict,
    "suspend": bool,
    "ttlSecondsAfterFinished": int,
}
RAYCLUSTER_FIELDS = {
    "authOptions": dict,
    "autoscalerOptions": dict,
    "enableInTreeAutoscaling": bool,
    "gcsFaultToleranceOptions": dict,
    "headGroupSpec": dict,
    "headServiceAnnotations": dict,
    "managedBy": str,
    "networkPolicy": dict,
    "rayVersion": str,
    "suspend": bool,
    "tlsOptions": dict,
    "upgradeStrategy": dict,
    "workerGroupSpecs": list,
}
HEAD_FIELDS = dict.fromkeys(("headService", "labels", "rayStartParams", "resources", "template"), dict)
HEAD_FIELDS |= {"enableIngress": bool, "serviceType": str}
WORKER_FIELDS = {
    "groupName": str,
    "idleTimeoutSeconds": int,
    "labels": dict,
    "maxReplicas": int,
    "minReplicas": int,
    "numOfHosts": int,
    "priority": int,
    "rayStartParams": dict,
    "replicas": int,
    "resources": dict,
    "scaleStrategy": dict,
    "suspend": bool,
    "template": dict,
}
AUTH_FIELDS = {"enableK8sTokenAuth": bool, "mode": str, "secretName": str}


def documents(name):
    return list(yaml.safe_load_all((DEPLOY / name).read_text()))


def check_fields(tree, fields, where):
    for name, value in tree.items():
        assert name in fields, f"{where} has no field {name}"
        assert type(value) is fields[name], f"{where}.{name} is a {type(value).__name__}"


def check_template(template):
    """Against the schema of the Kubernetes API, unknown fields refused."""
    pod = dict(apiVersion="v1", kind="Pod", metadata={"name": "pod", **template.get("metadata", {})}, spec=template["spec"])
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def check_rayjob(job):
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    assert len(job["metadata"]["name"]) <= 47  # the operator makes longer names from it
    spec, cluster = job["spec"], job["spec"]["rayClusterSpec"]
    check_fields(spec, RAYJOB_FIELDS, "RayJob.spec")
    check_fields(cluster, RAYCLUSTER_FIELDS, "rayClusterSpec")
    check_fields(cluster["authOptions"], AUTH_FIELDS, "authOptions")
    check_fields(cluster["headGroupSpec"], HEAD_FIELDS, "headGroupSpec")
    check_template(spec["submitterPodTemplate"])
    check_template(cluster["headGroupSpec"]["template"])
    for group in cluster["workerGroupSpecs"]:
        check_fields(group, WORKER_FIELDS, "workerGroupSpecs")
        check_template(group["template"])
    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())
    # What the operator itself refuses (ray-operator/controllers/ray/utils/validation.go).
    assert spec["submissionMode"] in ("K8sJobMode", "HTTPMode", "SidecarMode", "InteractiveMode")
    assert spec["shutdownAfterJobFinishes"] or not spec["ttlSecondsAfterFinished"]


@pytest.fixture
def rayjob():
    (job,) = documents("rayjob.yaml")
    return copy.deepcopy(job)  # YAML anchors share what they stand for


@pytest.fixture
def templates(rayjob):
    cluster = rayjob["spec"]["rayClusterSpec"]
    groups = (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])
    return [rayjob["spec"]["submitterPodTemplate"], *(group["template"] for group in groups)]


@pytest.fixture
def ray_up():
    (config,) = documents("ray-up.yaml")
    return config


def option(arguments, name):
    return arguments[arguments.index(name) + 1]


# --- Kubernetes ---


def test_the_rayjob_is_what_kuberay_and_kubernetes_read(rayjob):
    check_rayjob(rayjob)


def test_all_pods_run_unprivileged_and_behind_the_policy(rayjob, templates):
    policy = next(document for document in documents("kubernetes.yaml") if document["kind"] == "NetworkPolicy")
    label = policy["spec"]["podSelector"]["matchLabels"]
    for template in templates:
        assert template["metadata"]["labels"].items() >= label.items()
        pod = template["spec"]
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["runAsUser"] == 1000
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False and security["capabilities"]["drop"] == ["ALL"]
            assert container["resources"]["limits"] == container["resources"]["requests"]


def test_the_token_comes_from_a_secret(rayjob):
    auth = rayjob["spec"]["rayClusterSpec"]["authOptions"]
    text = (DEPLOY / "rayjob.yaml").read_text()
    assert auth["mode"] == "token" and f"create secret generic {auth['secretName']} --from-literal=auth_token=" in text


def test_a_retry_resumes_and_the_pods_have_its_gpus(rayjob):
    spec, entrypoint = rayjob["spec"], shlex.split(rayjob["spec"]["entrypoint"])
    assert spec["backoffLimit"] > 0 and "--resume" in entrypoint
    (group,) = spec["rayClusterSpec"]["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"]
    gpus = group["replicas"] * int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    assert gpus == int(option(entrypoint, "--workers")) * int(option(entrypoint, "--gpus-per-worker"))
    assert spec["rayClusterSpec"]["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    for path in (option(entrypoint, "--run"), *re.findall(r"data\.path=(\S+)", spec["entrypoint"])):
        assert path.startswith("/shared/")


# --- ray up ---


def test_ray_up_reads_its_file(ray_up):
    from ray.autoscaler._private.util import prepare_config, validate_config

    validate_config(prepare_config(copy.deepcopy(ray_up)))
    with pytest.raises(Exception, match="misspelt"):
        validate_config(prepare_config({**ray_up, "misspelt": 1}))


def test_ray_up_gives_the_head_no_work_and_every_node_the_token(ray_up):
    types = ray_up["available_node_types"]
    assert types[ray_up["head_node_type"]]["resources"] == {"CPU": 0, "GPU": 0}
    assert types["gpu"]["min_workers"] == types["gpu"]["max_workers"] == ray_up["max_workers"]
    assert types["gpu"]["min_workers"] * types["gpu"]["resources"]["GPU"] == 64
    assert "--env RAY_AUTH_MODE=token" in ray_up["docker"]["run_options"]
    assert "/home/dpfed/.ray" in ray_up["file_mounts"]
    assert "--volume /shared:/shared" in ray_up["docker"]["run_options"]
    for node in types.values():
        assert node["node_config"]["SecurityGroupIds"] and node["node_config"]["BlockDeviceMappings"][0]["Ebs"]["Encrypted"]


# --- the image ---


def instructions():
    """(instruction, argument) of the container recipe, continuation lines joined."""
    text = re.sub(r"^\s*#.*\n", "", (DEPLOY / "Containerfile").read_text(), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    return [tuple(line.split(maxsplit=1)) for line in lines if line.strip()]


def test_the_image_has_the_package_sources_and_nothing_else():
    copied = {source for word, rest in instructions() if word == "COPY" for source in rest.split()[:-1]}
    assert all((ROOT / source).exists() for source in copied)
    project = PYPROJECT["project"]
    packages = {path.parent.name for path in ROOT.glob("*/__init__.py")} - {"benchmarks"}
    shipped = {"configs", "benchmarks/published"}
    needed = {"pyproject.toml", "setup.py", "requirements.lock", project["readme"], *project["license-files"]}
    needed |= packages | shipped
    assert copied == needed
    assert not copied & {".", "runs", "stores"}  # private records and secret keys


def test_the_image_is_not_root_and_asks_for_a_token(templates):
    words = dict(instructions())
    assert words["USER"] == "1000:1000" and "RAY_AUTH_MODE=token" in words["ENV"]
    assert {template["spec"]["securityContext"]["runAsUser"] for template in templates} == {1000}

"""The real binary reads what the pods give it: arguments, variables and files as they stand in the manifests, mounts put elsewhere."""

import os
import json
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import tomllib
import urllib.error
import urllib.request

from . import rail_tls
from .world import flat

# What none of them may take, or the check above it would mean nothing.
SLIP = '\n[lock.session]\ntll = "15s"\n'
USAGE, UNAVAILABLE = 64, 69
LINK = {"DLOCK_ETCD_SERVICE_HOST": "10.0.0.1"}


class Binary:
    def __init__(self, path):
        self.path = str(pathlib.Path(path).resolve())
        said = subprocess.run([self.path, "version"], capture_output=True, text=True, check=True).stdout
        self.lab = '"lab"' in said
        self.said = " ".join(said.split())

    def run(self, words, variables):
        environment = {"PATH": os.environ["PATH"], **variables}
        done = subprocess.run(words, check=False, capture_output=True, text=True, env=environment, timeout=30)
        return done.returncode, done.stdout, done.stderr.strip()


def put_elsewhere(world, workload, folder):
    """Arguments and variables of the pod, with every mounted file below `folder` instead."""
    for path in world.secret_files(workload):
        there = folder / path.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        # A mounted secret is nobody else's.
        there.touch(mode=0o600)
        there.write_text("dummy")
    # What is read before anything is served has to be what it is called.
    asked = [value for name, value in world.settings(workload).items() if name in rail_tls.SETTINGS]
    if asked:
        cert, key = rail_tls.certificate(folder)
        for path in asked:
            (folder / path.lstrip("/")).write_text((key if path.endswith(".key") else cert).read_text())
    text = world.config_text(workload)
    file = next((word for word in workload.main.get("args") or [] if word.endswith(".toml")), None)
    if text is not None and file:
        there = folder / file.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        there.write_text(text.replace("/run/secrets/dlock/", f"{folder}/run/secrets/dlock/"))
    move = re.compile("/(?=run/secrets/dlock/|etc/dlock/)")
    variables = {name: value or f"{workload.name}-0" for name, value in world.environment(workload).items()}
    variables = {name: move.sub(f"{folder}/", value) for name, value in variables.items()}
    words = [move.sub(f"{folder}/", word) for word in workload.main.get("args") or []]
    words = [re.sub(r"\$\(([A-Z_]+)\)", lambda found: variables[found.group(1)], word) for word in words]
    return words, variables, file and folder / file.lstrip("/")


def component(binary, world, workload, folder):
    words, variables, file = put_elsewhere(world, workload, folder)
    command = [binary.path, *words]
    code, out, err = binary.run([*command, "--print-config"], variables)
    if code != 0:
        yield f"{world.overlay}: {workload.name}: exit code {code}: {err}"
        return
    printed = flat(tomllib.loads(out))
    for name, value in flat(tomllib.loads(file.read_text())).items():
        if printed.get(name) != value:
            yield f"{world.overlay}: {workload.name}: {name} is {value} in the file and {printed.get(name)} in effect"
    if "DLOCK_EXECUTOR_OWNER" in variables and printed.get("executor.owner") != variables["DLOCK_EXECUTOR_OWNER"]:
        yield f"{world.overlay}: {workload.name}: its owner is not the pod's name"
    code, _, err = binary.run([*command, "--print-config"], variables | LINK)
    if code != 0 or not all(name in err for name in LINK):
        yield f"{workload.name}: the variables of a Service dlock-etcd are not passed over with a warning: exit code {code}: {err}"
    # That each of these fails is what makes the success above mean something.
    good = file.read_text()
    file.write_text(good + SLIP)
    if binary.run([*command, "--print-config"], variables)[0] == 0:
        yield f"{workload.name}: an unknown setting is taken"
    if not binary.lab:
        file.write_text(good + "\n[payment.fencing]\nenabled = false\n")
        if binary.run([*command, "--print-config"], variables)[0] == 0:
            yield f"{workload.name}: this build without the lab knows a switch for a fence"
    file.write_text(good)


READY_WITHIN_S = 30


def as_far_as_ready(binary, world, folder):
    """The rail proxy of production, started with its own configuration until it says that it is ready; its database is a file here, since there
    is no other. That the rail is there is asked by a submission alone, so none is needed."""
    workload = world.workload("rail-proxy")
    words, variables, file = put_elsewhere(world, workload, folder)
    words += ["--listen=127.0.0.1:0", f"--store=sqlite:{folder}"]
    code, out, err = binary.run([binary.path, *words, "--print-config"], variables)
    if code != 0 or flat(tomllib.loads(out)).get("rail.url") != world.settings(workload)["rail.url"]:
        yield f"{world.overlay}: rail-proxy: exit code {code}: {err}"
        return
    yield from serves(binary, [binary.path, *words], variables)
    good = file.read_text()
    # Each of these has to keep it from starting, or its being ready says nothing.
    for slip, said in ((("https://", "ftp://"), "rail.url"), (("[rail.store]", '[rail.tls]\nca-file = "/not/there.pem"\n\n[rail.store]'), "rail.tls.ca-file")):
        text = re.sub(r"(?m)^(\[rail\.tls\]|(ca|cert|key)-file) ?.*$", "", good)
        file.write_text(text.replace(*slip))
        code, _, err = binary.run([binary.path, *words], variables)
        if code != USAGE or said not in err:
            yield f"{world.overlay}: rail-proxy: goes on with a wrong {said}: exit code {code}: {err}"
    file.write_text(good)


def serves(binary, command, variables):
    """Starts it, waits until it is ready, and ends it."""
    environment = {"PATH": os.environ["PATH"], **variables}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as child:
        late = threading.Timer(READY_WITHIN_S, child.kill)
        late.start()
        try:
            heard, address = [], None
            for line in child.stdout:
                heard.append(line)
                said = json.loads(line) if line.startswith("{") else {}
                if said.get("event") == "listening":
                    address = said["addr"]
                    break
            if address is None:
                yield f"rail-proxy: never listened: {''.join(heard[-5:])}{child.stderr.read()}"
                return
            while not ready(address):
                if child.poll() is not None:
                    yield "rail-proxy: never became ready"
                    return
            child.send_signal(signal.SIGTERM)
            for _ in child.stdout:
                pass
            if child.wait() != 0:
                yield f"rail-proxy: ended with {child.returncode}"
        finally:
            late.cancel()
            child.kill()


def ready(address):
    try:
        with urllib.request.urlopen(f"http://{address}/readyz", timeout=2) as answer:
            return answer.status == 200
    except (urllib.error.URLError, OSError):
        return False


def as_far_as_the_certificate(done, world, workload, folder):
    """A migration takes its arguments and reads its mounted files, the last of which is no certificate here: there it ends, before any network."""
    code, _, err = done
    if code != UNAVAILABLE or not re.search(rf"sslrootcert {folder}/run/secrets/dlock/\S+: there is no certificate in it", err):
        yield f"{world.overlay}: {workload.name}: exit code {code}: {err}"


def migration(binary, world, workload, folder):
    words, variables, _ = put_elsewhere(world, workload, folder)
    yield from as_far_as_the_certificate(binary.run([binary.path, *words], variables), world, workload, folder)
    if binary.run([binary.path, *words, "--no-such-argument"], variables)[0] != USAGE:
        yield f"{workload.name}: an unknown argument is taken"


def stub(binary, world, workload, folder):
    """It knows no --print-config, so: are its arguments known? An unknown one is refused before --help is seen."""
    words, variables, _ = put_elsewhere(world, workload, folder)
    code, _, err = binary.run([binary.path, *words, "--help"], variables)
    if code != 0:
        yield f"{world.overlay}: {workload.name}: exit code {code}: {err}"
    if binary.run([binary.path, *words, "--no-such-argument", "--help"], variables)[0] != USAGE:
        yield f"{workload.name}: an unknown argument is taken"


def check(binary, worlds):
    """(what is wrong, how many were tried, who was not)"""
    wrong, tried, left = [], 0, []
    for world in worlds.values():
        for workload in world.workloads:
            if workload.kind == "StatefulSet":
                continue
            if workload.name == "rail-stub" and not binary.lab:
                left.append(f"{world.overlay}/rail-stub: this binary has no lab")
                continue
            look = component if world.settings(workload) else stub if workload.name == "rail-stub" else migration
            with tempfile.TemporaryDirectory(prefix="dlock-k8s-") as folder:
                wrong += look(binary, world, workload, pathlib.Path(folder))
            tried += 1
    production = worlds["prod"]
    for world in (production, production.mutated(rail_tls.switch_on)):
        with tempfile.TemporaryDirectory(prefix="dlock-k8s-") as folder:
            wrong += as_far_as_ready(binary, world, pathlib.Path(folder))
            wrong += component(binary, world, world.workload("rail-proxy"), pathlib.Path(folder))
        tried += 1
    return wrong, tried, left

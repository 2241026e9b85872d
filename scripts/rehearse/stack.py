"""What the tests of the compose file share: commands, questions over HTTP, one project of containers."""

import json
import os
import pathlib
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid

ROOT = pathlib.Path(__file__).resolve().parents[2]
PASSWORDS = ["LOCKDB_ADMIN", "LOCKDB", "PAYDB_ADMIN", "PAYDB_OWNER", "PAYDB_PAYMENT", "PAYDB_RAIL"]


class Failed(Exception):
    """A check did not pass."""


def check(condition, what):
    """Prints what holds, or ends the run."""
    if not condition:
        raise Failed(what)
    print(f"  ok   {what}", flush=True)


def step(what):
    print(f"\n{what}", flush=True)


def run(*command, env=None, answer=True, may_fail=False):
    """A command's standard output; its standard error is shown when it fails."""
    done = subprocess.run(command, cwd=ROOT, env=env, text=True, capture_output=True, check=False)
    if done.returncode != 0 and not may_fail:
        sys.stderr.write(done.stdout + done.stderr)
        raise Failed(f"{shlex.join(command)}: exit code {done.returncode}")
    return done.stdout.strip() if answer else done


def await_that(what, within, ready):
    """Asks until `ready` answers something true; its answer. What it raises while things start is no answer."""
    started, last = time.monotonic(), None
    while time.monotonic() - started < within:
        try:
            answer = ready()
            if answer:
                check(True, f"{what} ({time.monotonic() - started:.1f} s)")
                return answer
            last = answer
        except (OSError, ValueError, KeyError) as error:
            last = error
        time.sleep(0.05)
    raise Failed(f"{what}: not within {within} s; last: {last!r}")


def ask(url, body=None, method=None, headers=(), expect=(200, 201)):
    """A JSON answer; any other status than expected is a failed check."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method, headers={"content-type": "application/json", **dict(headers)})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            status, text = answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        status, text = error.code, error.read().decode()
    if status not in expect:
        raise Failed(f"{request.get_method()} {url}: {status} {text[:500]}")
    return json.loads(text) if text.startswith(("{", "[")) else text


def metric(text, name, **labels):
    """The sum of a metric's samples with these labels."""
    total = 0.0
    for line in text.splitlines():
        if line.startswith((name + "{", name + " ")) and all(f'{key}="{value}"' in line for key, value in labels.items()):
            total += float(line.rsplit(" ", 1)[1])
    return total


class Project:
    """One project of a compose file: what carries its name, and nothing else."""

    def __init__(self, prefix, files, compose=None, **settings):
        self.project = f"{prefix}-{uuid.uuid4().hex[:8]}"
        self.compose = shlex.split(compose) if compose else self.found()
        self.files = [argument for file in files for argument in ("-f", str(file))]
        self.urls = {}
        # Only what is named here decides: variables of the caller's shell that compose or a component reads are left out.
        self.env = {key: value for key, value in os.environ.items() if not key.startswith(("DLOCK_", "LAB_", "COMPOSE_"))}
        self.env.update({key: value for key, value in os.environ.items() if key.startswith("DLOCK_") and key.endswith("_IMAGE")})
        self.env.update(COMPOSE_PROJECT_NAME=self.project, **{f"LAB_{name}_PASSWORD": uuid.uuid4().hex for name in PASSWORDS}, **settings)

    @staticmethod
    def found():
        if subprocess.run(["docker", "compose", "version"], capture_output=True, check=False).returncode == 0:
            return ["docker", "compose"]
        if shutil.which("docker-compose"):
            return ["docker-compose"]
        sys.exit("neither `docker compose` nor `docker-compose` is here")

    def __call__(self, *arguments):
        return run(*self.compose, *self.files, *arguments, env=self.env)

    def ids(self, kind="container"):
        command = {"container": ["ps", "-aq"], "network": ["network", "ls", "-q"], "volume": ["volume", "ls", "-q"]}[kind]
        return run("docker", *command, "--filter", f"label=com.docker.compose.project={self.project}").split()

    def containers(self):
        """What the engine says of each container, by its service."""
        ids = self.ids()
        found = json.loads(run("docker", "inspect", *ids)) if ids else []
        return {one["Config"]["Labels"]["com.docker.compose.service"]: one for one in found}

    def id(self, service):
        return self.containers()[service]["Id"]

    def url(self, service):
        """Where its port is. The engine is asked once: of what is asked here, only lock servers are ever started again."""
        if service not in self.urls:
            ports = self.containers()[service]["NetworkSettings"]["Ports"]
            self.urls[service] = "http://127.0.0.1:" + next(bound[0]["HostPort"] for bound in ports.values() if bound)
        return self.urls[service]

    def show_logs(self):
        for service, one in sorted(self.containers().items()):
            state = one["State"]
            print(f"\n--- {service}: {state['Status']}, exit code {state['ExitCode']}", file=sys.stderr)
            for probe in (state.get("Health") or {}).get("Log", [])[-1:]:
                print(f"    last probe: {probe['ExitCode']} {probe['Output'].strip()[-300:]}", file=sys.stderr)
            logs = subprocess.run(["docker", "logs", "--tail", "30", one["Id"]], text=True, capture_output=True, check=False)
            sys.stderr.write(logs.stdout + logs.stderr)

    def remove(self):
        """Everything that carries the project's name. By label: a profile that is not on would be left over by `down`."""
        for kind, command in (("container", ["rm", "-f", "-v"]), ("network", ["network", "rm"]), ("volume", ["volume", "rm", "-f"])):
            ids = self.ids(kind)
            if ids:
                subprocess.run(["docker", *command, *ids], capture_output=True, check=False)
        left = [kind for kind in ("container", "network", "volume") if self.ids(kind)]
        print(f"\nremoved {self.project}" + (f", but for: {', '.join(left)}" if left else ""), flush=True)

    def images(self, binary=None):
        """Builds both images; what they are called is then in the environment of every command."""
        command = ["scripts/compose-images", *(["--binary", str(binary)] if binary else [])]
        done = subprocess.run(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, check=False)
        if done.returncode != 0:
            sys.exit(2)
        for line in done.stdout.splitlines():
            name, _, value = line.removeprefix("export ").partition("=")
            self.env[name] = value

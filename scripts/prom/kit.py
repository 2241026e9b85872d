"""What the checks of metrics, alerts and dashboards stand on: Prometheus' own binaries, two Python packages, the project's files.

The binaries are used where they are: in PATH, unpacked earlier below the target folder, or in a container image that is here. Else
Debian's package is fetched by apt and unpacked below the target folder; nothing is installed and no service is started.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import venv

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARD = ROOT / "deploy" / "grafana" / "dlock.json"
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).absolute()
PACKAGES = ["promql-parser==0.12.0", "PyYAML==6.0.4"]
IMAGES = ["dlock-offline/prometheus:2", "prom/prometheus:v2.53.5"]
MISSING = """prometheus and promtool are neither in PATH nor in a container image that is here. Install
    Debian, Ubuntu   sudo apt-get install prometheus       (sudo systemctl disable --now prometheus, if it is not to run)
    macOS            brew install prometheus
    anywhere         scripts/build-offline-images prometheus, or docker pull prom/prometheus:v2.53.5"""


class Failure(Exception):
    """A check that did not pass, or what keeps it from being made."""


def library():
    """Makes the environment of Python packages where it is missing, and lets this process import from it."""
    home = TARGET / "check-prometheus"
    mark = home / "packages"
    if not mark.exists() or mark.read_text() != " ".join(PACKAGES):
        venv.create(home, clear=True, with_pip=True)
        pip = [home / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", *PACKAGES]
        subprocess.run(pip, check=True)
        mark.write_text(" ".join(PACKAGES))
    sys.path.append(str(next(home.glob("lib/python*/site-packages"))))


def quietly(*command, cwd=None):
    """Whether a command ran and ended well."""
    try:
        return subprocess.run(command, cwd=cwd, capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def unpacked():
    """Debian's package, fetched and unpacked below the target folder. None where apt cannot."""
    home = TARGET / "prometheus"
    found = home / "usr" / "bin"
    if not (found / "promtool").exists() and shutil.which("apt-get") and shutil.which("dpkg-deb"):
        home.mkdir(parents=True, exist_ok=True)
        fetch = ["apt-get", "download", "prometheus"]
        if quietly(*fetch, cwd=home) or (quietly("apt-get", "update") and quietly(*fetch, cwd=home)):
            package = next(home.glob("prometheus_*.deb"))
            quietly("dpkg-deb", "-x", package, home)
            package.unlink()
    return found if quietly(found / "promtool", "--version") and quietly(found / "prometheus", "--version") else None


class Tools:
    """How prometheus and promtool are called. `writable` is the one folder that a container may write to."""

    def __init__(self, writable):
        self.writable = pathlib.Path(writable)
        self.image = None
        named = os.environ.get("DLOCK_PROMETHEUS_IMAGE")
        here = [image for image in ([named] if named else IMAGES) if quietly("docker", "image", "inspect", image)]
        if shutil.which("prometheus") and shutil.which("promtool"):
            self.folder, self.said = "", "in PATH"
        elif here:
            self.image, self.said = here[0], f"in the image {here[0]}"
        else:
            folder = unpacked()
            if folder is None:
                raise Failure(MISSING)
            self.folder, self.said = f"{folder}/", f"unpacked in {folder}"

    def command(self, program, *arguments):
        """The whole command line of one of the two."""
        if self.image is None:
            return [f"{self.folder}{program}", *arguments]
        user = f"{os.getuid()}:{os.getgid()}"
        volumes = ["-v", f"{ROOT}/deploy:{ROOT}/deploy:ro", "-v", f"{self.writable}:{self.writable}"]
        return ["docker", "run", "--rm", "-i", "--network", "host", "--user", user, *volumes,
                "--entrypoint", f"/bin/{program}", self.image, *arguments]

    def promtool(self, *arguments, text=None):
        """Runs promtool; what it said where it was not content is the failure."""
        ran = subprocess.run(self.command("promtool", *arguments), input=text, capture_output=True, text=True, check=False)
        said = (ran.stdout + ran.stderr).strip()
        if ran.returncode != 0:
            raise Failure(f"promtool {' '.join(arguments)}:\n{said}")
        return said


def rules():
    """The rules of deploy/prometheus/rules, each with its file's name."""
    import yaml

    found = []
    for path in sorted(PROMETHEUS.glob("rules/*.yml")):
        for group in yaml.safe_load(path.read_text())["groups"]:
            found += [{"file": path.name, **rule} for rule in group["rules"]]
    return found


def rows(path, columns):
    """The rows of the Markdown tables in a file that have this many columns; headings and rules left out."""
    found = []
    for line in path.read_text().splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if len(cells) == columns and not re.fullmatch(r":?-+:?", cells[0]):
            found.append(cells)
    return found

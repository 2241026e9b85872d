"""The rail of production: what stands commented in its overlay, switched on, and certificates to read it with."""

import re
import shutil
import subprocess

from .world import Failure

SETTINGS = ("rail.tls.ca-file", "rail.tls.cert-file", "rail.tls.key-file")


def switch_on(world):
    """Takes the marks away, in the configuration and in the secrets."""
    data = world.config_map(world.workload("rail-proxy"))["data"]
    (key, text), = data.items()
    data[key], lines = re.subn(r"^#(\[rail\.tls\]$|(?:ca|cert|key)-file = )", r"\1", text, flags=re.M)
    parameters = world.find("SecretProviderClass", "rail-proxy")["spec"]["parameters"]
    parameters["secrets"], secrets = re.subn(r"^#(- \{)", r"\1", parameters["secrets"], flags=re.M)
    if (lines, secrets) != (4, 3):
        raise Failure("overlays/prod: [rail.tls] and its secrets are not there to be switched on")


def certificate(folder):
    """The paths of a certificate that vouches for itself, and of its key."""
    openssl = shutil.which("openssl")
    if openssl is None:
        raise Failure("openssl is needed for a certificate to read")
    folder.mkdir(parents=True, exist_ok=True)
    cert, key = folder / "made.pem", folder / "made.key"
    words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=rail-proxy"]
    subprocess.run([openssl, *words, "-out", cert, "-keyout", key], check=True, capture_output=True)
    return cert, key

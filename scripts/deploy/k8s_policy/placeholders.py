"""What an overlay still has to be told before it may be applied: values that stand for one's own. Nothing of it works as it is, by intent."""

import ipaddress
import json
import re

# No image has it.
NO_DIGEST = "sha256:" + "0" * 64
EXAMPLES = re.compile(r"\b(?:[a-z0-9-]+\.)*example\.(?:com|net|org)\b")
# Set aside for documentation (RFC 5737).
NOWHERE = [ipaddress.ip_network(net) for net in ("192.0.2.0/24", "198.51.100.0/24", "203.0.113.0/24")]


def left(world):
    """A sentence for each."""
    text = json.dumps(world.things)
    images = sorted({container["image"] for workload in world.workloads for container in workload.containers})
    yield from (f"the image {image}: no digest yet (scripts/release/pin)" for image in images if image.endswith(f"@{NO_DIGEST}"))
    for workload in world.workloads:
        for name, value in world.settings(workload).items():
            for host in sorted(set(EXAMPLES.findall(str(value)))):
                yield f"{name} of {workload.name}: {host} is an example"
    for address in sorted(set(re.findall(r"\b\d+\.\d+\.\d+\.\d+(?=[/:\"])", text))):
        if any(ipaddress.ip_address(address) in net for net in NOWHERE):
            yield f"{address} is an address for documentation"

"""What deploy/k8s has to keep: rules over rendered manifests, and a proof for each of them that it can fail."""

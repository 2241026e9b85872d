//! What every gateway shares: configuration, problems, probes, metrics, documentation, debug, drain.

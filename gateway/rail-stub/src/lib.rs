//! A deliberately hazardous rail: not idempotent, with faults on demand. Depends on no other package.

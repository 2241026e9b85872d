# `make demo` shows what dlock exists for; `make test` checks everything. Neither needs anything set up by hand.
# `make verify` only reads, `make fix` only writes.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
# A recipe is one script, so that what it set up it also takes down.
.ONESHELL:

CARGO ?= cargo
# The store on etcd and the export of spans are in what is tested; `make demo` does without: the one needs protoc, both much to compile.
FEATURES := --features dlock/etcd,dlock/otel
# The binary as the tests have it. An example is built along with it because then the dependencies of tests count, whose features
# would otherwise have most of the workspace compiled once more.
AS_TESTED := --workspace --bin dlock --example sdk $(FEATURES)
NEXTEST := $(shell $(CARGO) nextest --version >/dev/null 2>&1 && echo yes || echo no)
# Whichever generation is here; asked only where it is used.
COMPOSE = $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)

.PHONY: help
help: ## Show the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: demo
demo: ## The main job on the embedded store: paid exactly once under faults, and money lost with the fences off
	$(CARGO) run --quiet --package dlock -- demo

.PHONY: bean-check
bean-check: ## The report of a demo: beancount judges its ledgers, a validator its page
	$(CARGO) build --quiet --package dlock
	dir=$$(mktemp -d)
	trap 'rm -rf "$$dir"' EXIT
	"$${CARGO_TARGET_DIR:-target}/debug/dlock" demo --report "$$dir" >"$$dir/demo.txt" || { cat "$$dir/demo.txt"; exit 1; }
	scripts/bean-check "$$dir"
	scripts/check-report "$$dir/report.html"

.PHONY: check-exports
check-exports: ## Ledger exports, judged by hledger, beancount and rules for camt.053
	$(CARGO) build --quiet --package dlock
	scripts/check-exports --dlock "$${CARGO_TARGET_DIR:-target}/debug/dlock"

.PHONY: check-openapi
check-openapi: ## The components' OpenAPI documents against what they answer: an example for every answer, valid and like the real one
	$(CARGO) build --quiet --package dlock
	scripts/check-openapi --self-test
	scripts/check-openapi --dlock "$${CARGO_TARGET_DIR:-target}/debug/dlock"

.PHONY: check-prometheus
check-prometheus: ## Metrics, alerts and dashboard in a real Prometheus that scrapes the system; then a fence falls (a minute)
	$(CARGO) build --quiet --package dlock
	scripts/check-prometheus --dlock "$${CARGO_TARGET_DIR:-target}/debug/dlock"

.PHONY: up
up: ## Run the whole system on the embedded stores until Ctrl-C
	$(CARGO) run --quiet --package dlock -- up

.PHONY: console-images
console-images: ## The pictures of docs/console.md, taken anew from real runs in a real browser (needs chromium and chromium-driver)
	DLOCK_CONSOLE_IMAGES="$(CURDIR)/docs/images" CI=true $(CARGO) test --package dlock $(FEATURES) --test console
	! command -v pngquant >/dev/null || pngquant --quality 60-90 --force --ext .png docs/images/console-*.png

.PHONY: build
build: ## Compile everything, tests included
	$(CARGO) build --workspace --all-targets $(FEATURES)

.PHONY: test
test: protoc verify images production unit doctest bean-check check-exports check-openapi check-prometheus readme deploy-check ## Everything: format, lints, docs, tests on real servers, the demo, the README's commands, the manifests

.PHONY: protoc
protoc: ## Make sure of protoc, which the store on etcd is built with
	scripts/need-protoc

.PHONY: images
images: ## Make sure of the images that tests start: what exists is used, else pulled, else built offline
ifeq ($(CI),true)
	scripts/test-images
else
	scripts/test-images || echo "*** without Docker the tests on PostgreSQL and etcd are skipped ***"
endif

.PHONY: verify
verify: format lint docs proof-check ## Format, lints, documentation, patches that still fit; writes nothing

.PHONY: format
format: ## Is the code formatted?
	$(CARGO) fmt --all --check

.PHONY: lint
lint: ## Clippy, warnings are errors
	$(CARGO) clippy --workspace --all-targets $(FEATURES) -- -D warnings

.PHONY: docs
docs: ## Does the documentation build without a warning?
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --workspace $(FEATURES) --no-deps --quiet

.PHONY: production
production: ## The binary without the lab; a test then shows that it knows no switch for a fence
	# Beside everything else, so that most of it is compiled once; then out of the way of the binary that the tests start.
	$(CARGO) build --package dlock --bin dlock --no-default-features
	mkdir -p "$${CARGO_TARGET_DIR:-target}/production/debug"
	cp "$${CARGO_TARGET_DIR:-target}/debug/dlock" "$${CARGO_TARGET_DIR:-target}/production/debug/dlock"

.PHONY: unit
unit: production ## All tests of all packages; PostgreSQL is started in a container, or named by DLOCK_TEST_PG_URL
ifeq ($(NEXTEST),yes)
	trap 'scripts/test-servers stop' EXIT
	export PRODUCTION_BINARY="$$(realpath "$${CARGO_TARGET_DIR:-target}")/production/debug/dlock"
	# Two more than there are processors: a test waits for servers, leases and processes more than it computes.
	$(CARGO) nextest run --workspace $(FEATURES) --no-fail-fast --test-threads "$$(( $$(nproc) + 2 ))"
	echo "*** not run here: every fault of the databases, every crash point; they are part of make chaos ***"
else
	@echo "cargo-nextest is not installed: running the same tests with cargo test, one test binary after the other"
	trap 'scripts/test-servers stop' EXIT
	export PRODUCTION_BINARY="$$(realpath "$${CARGO_TARGET_DIR:-target}")/production/debug/dlock"
	$(CARGO) test --workspace $(FEATURES) --no-fail-fast --lib --bins --tests --examples
endif

.PHONY: doctest
doctest: ## Examples in the documentation, among them those that must not compile
	$(CARGO) test --workspace $(FEATURES) --doc --quiet

.PHONY: readme
readme: ## Run the commands of the README and of the runbooks as written
	scripts/check-readme --self-test
	scripts/check-readme README.md
	export CARGO_TARGET_DIR="$$(realpath "$${CARGO_TARGET_DIR:-target}")"
	for page in $$(grep -l '<!-- run' docs/08-operations/*.md); do scripts/check-readme "$$page"; done

.PHONY: bench
bench: ## Throughput and latency of the lock server on the embedded store (release build)
	$(CARGO) run --quiet --release --package dlock -- bench

.PHONY: compose-up
compose-up: ## Run the system as containers, around this machine's binary
	eval "$$(scripts/compose-images)"
	$(COMPOSE) up -d --no-build
	$(COMPOSE) ps

.PHONY: compose-down
compose-down: ## Remove those containers; what the databases hold is kept (compose down -v removes that too)
	$(COMPOSE) --profile etcd --profile heedless down --remove-orphans

.PHONY: compose-test
compose-test: ## Containers of its own: payouts while servers are killed and a worker is paused (3 minutes)
	scripts/compose-test

.PHONY: deploy-check
deploy-check: lint-deploy check-k8s check-terraform check-release ## What of deploy/ can be judged without a cloud; ends with what cannot
	# PyYAML is in the environment of check-k8s.
	"$${CARGO_TARGET_DIR:-target}/check-k8s/bin/python" scripts/rehearsal --self-test

.PHONY: check-k8s
check-k8s: ## The manifests: rendered, held against schemas and our policies, configurations tried by the binary; each rule proved by a planted mistake
	$(CARGO) build --quiet $(AS_TESTED)
	scripts/check-k8s --dlock "$${CARGO_TARGET_DIR:-target}/debug/dlock"

.PHONY: check-release
check-release: ## What of a release can be judged in seconds, and the proof that each check can fail
	scripts/check-release
	scripts/check-release --test

.PHONY: cargo-deny
cargo-deny: ## cargo-deny over the dependencies, installed below the target folder the first time; known defects where there is a network
	scripts/release/deny

.PHONY: release-twice
release-twice: protoc ## The released binary and its image, each built twice in different places: the same bytes? (25 minutes)
	out="$${CARGO_TARGET_DIR:-target}/release-twice"
	scripts/release/build --compare --out "$$out"
	scripts/release/image --compare --binary "$$out/dlock" --out "$$out"

.PHONY: rehearsal
rehearsal: protoc images ## The production topology as containers: rolling restarts, a lost node, a cut-off zone, under load (8 minutes)
	$(CARGO) build $(AS_TESTED)
	scripts/rehearsal --dlock "$${CARGO_TARGET_DIR:-target}/debug/dlock"

.PHONY: hungry
hungry: ## What a well-behaved client sees beside hungry ones, and docs/hungry.md (release build; 5 minutes, as root for the full disk)
	$(CARGO) build --release --package dlock
	scripts/hungry --dlock "$${CARGO_TARGET_DIR:-target}/release/dlock" --write docs/hungry.md

.PHONY: check-terraform
check-terraform: ## deploy/terraform without a cloud: references, the provider's schema, our policies, each proved by a planted mistake
	scripts/check-terraform

.PHONY: lint-deploy
lint-deploy: ## Dockerfiles, YAML and shell scripts, by linters in an environment of their own
	scripts/lint-deploy

.PHONY: bench-backends
bench-backends: protoc images ## Throughput through dlock over that of PostgreSQL and etcd themselves (release build)
	$(CARGO) build --release --package dlock $(FEATURES)
	$(CARGO) build --release --package lock-store --features etcd --example etcd_own_lock
	dir="$${CARGO_TARGET_DIR:-target}/release"
	scripts/bench-backends --dlock "$$dir/dlock" --own-lock "$$dir/examples/etcd_own_lock"

.PHONY: scenario-table
scenario-table: protoc images ## Run every use case on every backend and write docs/scenarios.md
	$(CARGO) build $(AS_TESTED)
	scripts/scenario-table --dlock "$${CARGO_TARGET_DIR:-target}/debug/dlock"

.PHONY: proof-check
proof-check: ## Does every patch that removes a guard still fit?
	scripts/proof --check

.PHONY: mutation-table
mutation-table: ## Plant every kind of violation into a history, and write docs/mutations.md: which verdict catches it
	$(CARGO) run --quiet --package harness --example mutations >docs/mutations.md

.PHONY: proof
proof: protoc images mutation-table ## Everything that proves the proof: guards removed, every crash point, Jepsen, ten minutes of faults (2 hours)
	$(CARGO) build $(AS_TESTED)
	dlock="$${CARGO_TARGET_DIR:-target}/debug/dlock"
	for on in sqlite pg etcd; do
		"$$dlock" scenario jepsen --store "$$on"
	done
	scripts/crash-table --dlock "$$dlock"
	scripts/fault-table --dlock "$$dlock"
	scripts/proof

.PHONY: fault-table
fault-table: protoc images ## Ten minutes of random faults on each backend, and docs/fault-table.md (40 minutes)
	$(CARGO) build $(AS_TESTED)
	scripts/fault-table --dlock "$${CARGO_TARGET_DIR:-target}/debug/dlock"

.PHONY: chaos
chaos: protoc images ## Every database fault and crash point, then random faults on each backend and on containers, a fresh seed each (a quarter of an hour)
	$(CARGO) build $(AS_TESTED)
	dlock="$${CARGO_TARGET_DIR:-target}/debug/dlock"
	$(CARGO) nextest run --package dlock $(FEATURES) --profile long
	for on in sqlite pg etcd; do
		"$$dlock" scenario random --for 2m --store "$$on"
	done
	"$$dlock" scenario random --every-kind --for 1m --store pg --stack containers
	"$$dlock" scenario fence-kit --for 2m

.PHONY: fix
fix: ## Format and apply what clippy can
	$(CARGO) fmt --all
	$(CARGO) clippy --workspace --all-targets --fix --allow-dirty --allow-staged

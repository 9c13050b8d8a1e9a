# make demo and make test need Python 3.11 and nothing else; each sets up .venv by itself.
PYTHON ?= python3.11
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.installed

# Threads that wait sleep instead of spin, which is fair to other programs and to ourselves beside them (python -m
# scripts bench busy). What you have set counts.
ifeq ($(OMP_WAIT_POLICY)$(GOMP_SPINCOUNT),)
export OMP_WAIT_POLICY := PASSIVE
export GOMP_SPINCOUNT := 10000
endif

.PHONY: demo test test-slow lint clean

demo: $(READY)
	$(RUN) -W ignore -m scripts demo

# One thread in each of several processes: on tensors as small as those of the tests, threads wait for each other.
test: $(READY) lint
	OMP_NUM_THREADS=1 $(RUN) -m pytest -n auto --maxprocesses 4 -m "not slow" --cov --cov-report=term --cov-fail-under=90

test-slow: $(READY)
	$(RUN) -m pytest -m slow

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy bundle scripts

$(READY): pyproject.toml
	$(if $(shell command -v $(PYTHON)),$(PYTHON),python3) -m venv $(VENV)
	$(RUN) -m pip install --quiet ".[dev]"
	touch $(READY)

clean:
	rm -rf $(VENV) eval build *.egg-info

# make demo and make test need Python 3.11 and nothing else; each sets up .venv by itself. The MONAI Label server has an
# environment of its own, .venv-label, because it needs an older pydicom.
PYTHON ?= python3.11
VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.installed
LABEL_VENV := .venv-label
LABEL_RUN := $(LABEL_VENV)/bin/python
LABEL_READY := $(LABEL_VENV)/.installed
DEMO := eval/label-demo
BASE_PYTHON = $(if $(shell command -v $(PYTHON)),$(PYTHON),python3)

# Threads that wait sleep instead of spin, which is fair to other programs and to ourselves beside them (python -m
# scripts bench busy). What you have set counts.
ifeq ($(OMP_WAIT_POLICY)$(GOMP_SPINCOUNT),)
export OMP_WAIT_POLICY := PASSIVE
export GOMP_SPINCOUNT := 10000
endif

.PHONY: demo test test-slow test-label serve serve-demo lint clean

demo: $(READY)
	$(RUN) -W ignore -m scripts demo

# One thread in each of several processes: on tensors as small as those of the tests, threads wait for each other.
test: $(READY) lint
	OMP_NUM_THREADS=1 $(RUN) -m pytest -n auto --maxprocesses 4 -m "not slow" --cov --cov-report=term --cov-fail-under=90

test-slow: $(READY) test-label
	$(RUN) -m pytest -m "slow and not label"

# The real server on a free loopback port, driven over HTTP; Orthanc where it is installed.
test-label: $(READY) $(LABEL_READY)
	$(LABEL_RUN) -m pytest -m label tests/label

# make serve STUDIES=DIR [MODEL=…] [REFERENCE=DIR] [STATE=DIR] [OVERLAYS=…] [PRIOR=…] [PORT=8000]
serve: $(LABEL_READY)
	$(if $(STUDIES),,$(error give the scans: make serve STUDIES=DIR, or the URL of a DICOMweb server))
	$(LABEL_RUN) -W ignore -m scripts serve "$(STUDIES)" $(if $(MODEL),--model "$(MODEL)") \
	  $(if $(REFERENCE),--reference "$(REFERENCE)") $(if $(STATE),--state "$(STATE)") \
	  $(if $(OVERLAYS),--overlays "$(OVERLAYS)") $(if $(PRIOR),--prior "$(PRIOR)") $(if $(PORT),--port $(PORT))

# The same with phantoms and the demo's model, which is trained first if it is not there.
serve-demo: $(READY) $(LABEL_READY)
	test -f eval/demo/models/model.pt || $(RUN) -W ignore -m scripts demo
	test -d $(DEMO)/scans/test || $(RUN) -m scripts phantom --output $(DEMO)/scans --seed 7 --full 0 --partial 0 --test 12
	test -d $(DEMO)/unseen || $(RUN) -m scripts phantom --output $(DEMO)/unseen --seed 8 --full 0 --partial 0 --test 0 \
	  --validation 4
	$(MAKE) serve STUDIES=$(DEMO)/scans/test/imagesTs MODEL=eval/demo/models REFERENCE=eval/demo/data,$(DEMO)/unseen \
	  STATE=$(DEMO)/state OVERLAYS=configs/overlays/demo.yaml

lint: $(READY)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy bundle scripts label

$(READY): pyproject.toml
	$(BASE_PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet ".[dev]"
	touch $(READY)

$(LABEL_READY): label/requirements.txt label/requirements-alone.txt
	$(BASE_PYTHON) -m venv $(LABEL_VENV)
	$(LABEL_RUN) -m pip install --quiet -r label/requirements.txt pytest==9.2.0 selenium==4.45.0
	$(LABEL_RUN) -m pip install --quiet --no-deps -r label/requirements-alone.txt
	touch $(LABEL_READY)

clean:
	rm -rf $(VENV) $(LABEL_VENV) eval build *.egg-info

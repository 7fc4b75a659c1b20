# Everything that a fresh machine needs is python3 (3.11 to 3.13), git, make and a package registry.
PYTHON ?= python3
VENV := .venv
RUN := runs/quickstart
# One process more than there are cores, for some tests wait for others' processes; at most four.
AT_ONCE := $(shell cores=$$(getconf _NPROCESSORS_ONLN); echo $$((cores < 3 ? cores + 1 : 4)))
# Tests start some hundred processes, each of which would compile all of PyTorch anew where an environment says so.
unexport PYTHONDONTWRITEBYTECODE
PYTEST := OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest --numprocesses $(AT_ONCE) --dist loadfile --no-loadscope-reorder

.PHONY: install quickstart adapt federation federation-moments test test-long test-ray test-docs test-slow bench lint docs tutorials release lock clean

# Everything: clusters, institutions, open_clip, tests. The quickstart needs less, and takes the shorter lock file.
install: $(VENV)/.installed

$(VENV)/.installed: requirements.lock pyproject.toml setup.py
	$(call into_venv,requirements.lock)

$(VENV)/.core: requirements-core.lock pyproject.toml setup.py
	$(call into_venv,requirements-core.lock)

# The first import of torch writes its bytecode, which takes 10 s: a second core does it beside the last installation.
define into_venv
@command -v uv >/dev/null || $(PYTHON) -m uv --version >/dev/null 2>&1 || $(PYTHON) -m pip install --quiet uv || \
	{ $(PYTHON) -m venv .uv && .uv/bin/pip install --quiet uv; }
@echo "installing $$(grep -c '^[a-z].*==' $(1)) packages of $(1) into $(VENV); with PyTorch they take about 6 GB"
@uv=$$(command -v uv || { test -x .uv/bin/uv && echo .uv/bin/uv; } || echo "$(PYTHON) -m uv"); shown=$$(test -t 2 || echo --quiet); \
	$$uv venv --quiet --allow-existing --python $$($(PYTHON) -c 'import sys; print(sys.executable)') $(VENV) && \
	$$uv pip install $$shown --python $(VENV)/bin/python --require-hashes -r $(1) && \
	{ $(VENV)/bin/python -c "import torch._dynamo, scipy.stats, matplotlib.backends.backend_agg" >/dev/null 2>&1 & \
	$$uv pip install --quiet --python $(VENV)/bin/python --no-deps --no-build-isolation -e .; }
@touch $@
endef

quickstart: $(if $(wildcard $(VENV)/.installed),install,$(VENV)/.core)
	@if test -e $(RUN); then $(VENV)/bin/dpfed resume $(RUN); \
		else $(VENV)/bin/dpfed pretrain quickstart --run $(RUN); fi

# A public model on half the colours, then its private adaptation to the other half.
adapt: install
	@for name in public adapted; do run=runs/shapes-$$name; config=$${name%adapted}; \
		if test -e $$run; then $(VENV)/bin/dpfed resume $$run; \
		else $(VENV)/bin/dpfed pretrain adapt/shapes$${config:+-$$config} --run $$run; fi || exit; done

# Three institutions on this machine, over TLS; the same command resumes after an interruption.
federation: install
	@$(VENV)/bin/dpfed federation demo federation --run runs/federation

# A federation of two rounds: public towers are trained in seconds, and private moments adapt them; three sites in one process.
federation-moments: install
	@test -e runs/federation-public/results.json || $(VENV)/bin/dpfed pretrain adapt/federation-public --run runs/federation-public
	@run=runs/federation-moments; if test -e $$run; then $(VENV)/bin/dpfed resume $$run; else $(VENV)/bin/dpfed pretrain \
		federation-moments --run $$run --federated 3 --trust secure --drops 1 --colluders 0; fi

# A file's tests stay in one process, and the longest files begin (tests/conftest.py); real clusters and federations want memory,
# so there are four processes at most.
test: install
	$(PYTEST) -m "not slow and not long"

# The tests that take more than about 0.7 seconds each: two thirds of the time of all, and what CI also runs.
test-long: install
	$(PYTEST) -m "long and not slow"

# What CI also runs, though it takes minutes: a job on a real Ray head.
test-ray: install
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -m slow tests/cluster/test_ray_jobs.py -k submitted_job_leaves

# CI also runs this, in minutes: the tutorials are executed, and the site answers what people search for, in a browser.
test-docs: install
	OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest -m slow tests/docs/test_site.py tests/docs/test_site_answers.py

# Noise multipliers that the tests keep (tests/calibrated.json) are searched for anew.
test-slow: install
	DPFED_TESTS_SEARCH=1 $(PYTEST) -m "slow or not slow"

bench: install
	$(VENV)/bin/python -m benchmarks.step

# The documentation as a site, in build/site; the tutorials' output is kept with them, and made anew by `make tutorials`.
docs: install
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --quiet

# All that a release consists of, up to the upload; `make release OPTIONS=--rehearsal` before the changelog has a day.
release: install
	$(VENV)/bin/python scripts/release.py $(OPTIONS)

tutorials: install
	$(VENV)/bin/python docs/tutorials/run.py

lint: install
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy && \
		$(VENV)/bin/python -m pytest --quiet tests/docs/test_words.py

# The lock files: exact versions and hashes for every supported Python, no registry addresses; the shorter one is a part of the other.
LOCK := uv pip compile pyproject.toml --universal --python-version 3.11 --generate-hashes --no-annotate --no-header --no-emit-index-url --quiet
lock:
	$(LOCK) --extra dev --output-file requirements.lock
	$(LOCK) --constraints requirements.lock --output-file requirements-core.lock

clean:
	rm -rf $(VENV) .uv build *.egg-info

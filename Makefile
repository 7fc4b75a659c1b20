# Everything that a fresh machine needs is python3 (3.11 to 3.13), git, make and a package registry.
PYTHON ?= python3
VENV := .venv
RUN := runs/quickstart
PYTEST := OMP_NUM_THREADS=1 $(VENV)/bin/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

.PHONY: install quickstart adapt federation test test-slow bench lint clean

install: $(VENV)/.installed

$(VENV)/.installed: requirements.lock pyproject.toml setup.py
	@command -v uv >/dev/null || $(PYTHON) -m uv --version >/dev/null 2>&1 || $(PYTHON) -m pip install --quiet uv || \
		{ $(PYTHON) -m venv .uv && .uv/bin/pip install --quiet uv; }
	@uv=$$(command -v uv || { test -x .uv/bin/uv && echo .uv/bin/uv; } || echo "$(PYTHON) -m uv"); \
		$$uv venv --quiet --allow-existing --python $$($(PYTHON) -c 'import sys; print(sys.executable)') $(VENV) && \
		$$uv pip install --quiet --compile-bytecode --python $(VENV)/bin/python --require-hashes -r requirements.lock && \
		$$uv pip install --quiet --python $(VENV)/bin/python --no-deps --no-build-isolation -e .
	@touch $@

quickstart: install
	@if test -e $(RUN); then $(VENV)/bin/dpfed resume $(RUN); \
		else $(VENV)/bin/dpfed pretrain quickstart --run $(RUN); fi

# A public model on half the colours, then its private adaptation to the other half.
adapt: install
	@for name in public adapted; do run=runs/shapes-$$name; config=$${name%adapted}; \
		if test -e $$run; then $(VENV)/bin/dpfed resume $$run; \
		else $(VENV)/bin/dpfed pretrain adapt/shapes$${config:+-$$config} --run $$run; fi || exit; done

# Three institutions on this machine, over TLS; the same command goes on after an interruption.
federation: install
	@$(VENV)/bin/python -m server.demo federation --run runs/federation

# A file's tests stay in one process; real clusters and federations want memory, so there are four processes at most.
test: install
	$(PYTEST)

test-slow: install
	$(PYTEST) -m "slow or not slow"

bench: install
	$(VENV)/bin/python -m benchmarks.step

lint: install
	$(VENV)/bin/ruff check . && $(VENV)/bin/ruff format --check . && $(VENV)/bin/mypy

# The lock file: exact versions and hashes for every supported Python, no registry addresses.
lock:
	uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
		--no-emit-index-url --quiet --output-file requirements.lock

clean:
	rm -rf $(VENV) .uv build *.egg-info

# make demo, make test-fast, make test, make check: each sets up .venv first; the second time that takes no time.
PYTHON := $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/ready

.PHONY: demo test-fast test test-integration test-faults test-faults-all check architecture bench bench-diagnose bench-gpu bench-network bench-parity bench-starts bench-start-up bench-stops faults gallery pictures clean

demo: $(READY)
	$(BIN)/python -m common.compare 'run=[torch:ddp,tf:mirrored]' experiment=demo

# A worker of pytest-xdist takes whole files. One that crashes is not replaced, since the tests would then never end.
BY_FILE := --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# The unit tests but for the slow ones: about a minute and a half.
test-fast: $(READY)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -q -m "not slow and not bench and not faults" -n 3 $(BY_FILE) tests/unit

# The unit tests and the parity tests.
test: $(READY)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -q -m "not bench and not faults" -n 2 $(BY_FILE) tests/parity tests/unit

# Whole commands, two hosts, an installed wheel, the commands of the README as they stand there.
test-integration: $(READY)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -q -m "not bench and not faults and not matrix" -n 2 $(BY_FILE) tests/integration

# Runs that are killed, stopped, short of disk, and resumed: each mechanism once.
test-faults: $(READY)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -q -m "faults and not bench and not matrix" -n 2 $(BY_FILE) tests/integration tests/faults

# The same with every strategy, framework and launcher: run it before a release; about an hour.
test-faults-all: $(READY)
	STOPS_ALL=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -q -m "(faults or matrix) and not bench" -n 2 $(BY_FILE) tests/integration tests/faults

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# The pages of docs/gallery, into build/gallery.
gallery: $(READY)
	@for runs in docs/gallery/*/; do \
		$(BIN)/python -m common.compare $$runs output=build/gallery/$$(basename $$runs) | tail -3 || exit 1; done

# The pictures of the README and of docs/diagnosis.md, and those of docs/report.md, for which Chromium is needed.
pictures: $(READY)
	$(BIN)/python -m common.compare 'run=[torch:ddp,tf:mirrored]' experiment=demo output=build pictures=build/pictures
	cp build/pictures/loss.png build/pictures/loss_difference.png docs
	$(BIN)/python -m docs.draw_story
	$(BIN)/python -m docs.draw_report

# The picture of the packages and of a run, from the imports as they are now, into docs/architecture.svg.
architecture: $(READY)
	$(BIN)/python -m docs.draw_architecture

# Speed against scripts as users of other libraries write them; some ten minutes.
bench: $(READY)
	$(BIN)/python -m common.bench

# The CPU's curve against the GPU's, then speed in bfloat16, with the PyTorch of $(GPU_PYTHON) and without TensorFlow.
GPU_PYTHON := python3
bench-gpu:
	$(GPU_PYTHON) -m benchmarks.gpu $(ARGS)

# Steps per second between two hosts over a slowed link, into docs/network.md and .png; Linux, as root, some ten minutes.
bench-network: $(READY)
	$(BIN)/python -m benchmarks.network

# What takes many minutes: every strategy's parity numbers, real pretrained weights, what training learns.
bench-parity: $(READY)
	$(BIN)/python -m pytest -q -m bench -rP tests --ignore tests/integration/test_starts.py --ignore tests/faults

# 20 starts in a row of everything that starts many processes.
bench-starts: $(READY)
	$(BIN)/python -m pytest -q -m bench -rP tests/integration/test_starts.py

# Planted causes of differences and pairs without any, into docs/diagnosis_table.md; more than an hour.
bench-diagnose: $(READY)
	$(BIN)/python -m benchmarks.diagnose

# From the start of a rank to its first batch, with a small corpus and a large one.
bench-start-up: $(READY)
	$(BIN)/python -m benchmarks.start_up

# SIGTERM to any rank or host at random moments, of every strategy under every launcher; Linux, as root.
bench-stops: $(READY)
	$(BIN)/python -m benchmarks.stops

# What a run survives, each fault three times, into docs/reliability.md; Linux, as root (small disks), most of an hour.
faults: $(READY)
	$(BIN)/python -m benchmarks.faults

$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: Python 3.11, 3.12 or 3.13 is needed"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv cache runs bench report.html report.json

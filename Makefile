# Every target except bench-gpu and clean first sets up .venv if it is missing or older than the list of dependencies.
PYTHON := $(shell for p in python3.11 python3.12 python3.13 python3; do \
	$$p -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' 2>/dev/null && echo $$p && break; done)
BIN := .venv/bin
READY := .venv/ready

# Without written bytecode, every process of the tests would compile PyTorch or TensorFlow again: 8 seconds each.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test-fast test test-integration test-faults test-faults-all test-environments check architecture bench bench-diagnose bench-gpu bench-network bench-parity bench-seeds bench-starts bench-start-up bench-stops bench-versions faults gallery pictures zoo crossed-wires crossed-wires-picture clean

demo: $(READY)
	$(BIN)/python -m common.compare 'run=[torch:ddp,tf:mirrored]' experiment=demo

# A worker of pytest-xdist takes whole files. A crashed worker is not replaced, because the tests would never end.
BY_FILE := --dist loadfile --no-loadscope-reorder --max-worker-restart 0

# Run the unit tests except for the slow ones, and without TensorFlow, which takes long to start, and the recorder of
# PyTorch, which replaces functions in every loaded module: about 90 seconds on two cores.
test-fast: $(READY)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -q -m "not slow and not bench and not faults and not matrix" -n 2 $(BY_FILE) \
		--ignore tests/unit/tf_impl --ignore tests/unit/torch_impl/record tests/unit

# Run the unit tests and the parity tests, without those of the marker `matrix`.
test: $(READY)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -q -m "not bench and not faults and not matrix" -n 2 $(BY_FILE) tests/parity tests/unit

# Run whole commands, on one host and on two, from an installed wheel, and as the README shows them.
test-integration: $(READY)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -q -m "not bench and not faults and not matrix" -n 2 $(BY_FILE) tests/integration

# Kill runs, stop them, fill their disks, and resume them. Each mechanism is tested once. These tests often wait, so that
# two cores have time for three workers. CI has two, beside `make test-integration`.
WORKERS := 3
test-faults: $(READY)
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -q -m "faults and not bench and not matrix" -n $(WORKERS) $(BY_FILE) \
		tests/integration/test_hosts.py tests/integration/test_resume.py tests/faults

# Do the same with every strategy, framework and launcher, and run the other tests that the targets above leave out
# (pytest.mark.matrix): about an hour, before a release.
test-faults-all: $(READY)
	STOPS_ALL=1 OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -q -m "(faults or matrix) and not bench" -n 2 $(BY_FILE) \
		tests/integration tests/faults tests/unit

# Make other Python environments in build/environments, from the package index, and compare them with this one.
test-environments: $(READY)
	$(BIN)/python -m tests.environments build/environments
	OMP_WAIT_POLICY=PASSIVE $(BIN)/python -m pytest -q tests/integration/test_environments.py

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# Write the reports of the runs in docs/gallery to build/gallery.
gallery: $(READY)
	@for runs in docs/gallery/*/; do \
		$(BIN)/python -m common.compare $$runs output=build/gallery/$$(basename $$runs) | tail -3 || exit 1; done

# Draw the pictures of the README, docs/diagnosis.md, docs/performance.md and docs/report.md. Those of docs/report.md need Chromium.
pictures: $(READY)
	$(BIN)/python -m common.compare 'run=[torch:ddp,tf:mirrored]' experiment=demo output=build pictures=build/pictures
	cp build/pictures/loss.png build/pictures/loss_difference.png docs
	$(BIN)/python -m docs.draw_story
	$(BIN)/python -m docs.draw_performance
	$(BIN)/python -m docs.draw_report

# Write the diagram of docs/architecture.md from the imports between the packages.
architecture: $(READY)
	$(BIN)/python -m docs.draw_architecture

# Compare the speed with scripts for other libraries: about ten minutes.
bench: $(READY)
	$(BIN)/python -m common.bench

# Compare the curves of CPU and GPU, then measure the speed in bfloat16, with the PyTorch of $(GPU_PYTHON).
GPU_PYTHON := python3
bench-gpu:
	$(GPU_PYTHON) -m benchmarks.gpu $(ARGS)

# Measure steps per second between two hosts over a slowed link, for docs/network.md and docs/network.png. Needs Linux
# and root; takes about ten minutes.
bench-network: $(READY)
	$(BIN)/python -m benchmarks.network

# Run the tests that take many minutes: parity of every strategy, real pretrained weights, the accuracy of long runs.
bench-parity: $(READY)
	$(BIN)/python -m pytest -q -m bench -rP tests --ignore tests/integration/test_starts.py --ignore tests/faults

# Measure false alarms and planted faults of the verdicts on groups of seeds, for docs/statistics.md: minutes.
bench-seeds: $(READY)
	$(BIN)/python -m benchmarks.seeds

# Start every kind of run that has many processes 20 times in a row.
bench-starts: $(READY)
	$(BIN)/python -m pytest -q -m bench -rP tests/integration/test_starts.py

# Diagnose pairs of runs with planted faults and pairs without faults, for docs/diagnosis_table.md: more than an hour.
bench-diagnose: $(READY)
	$(BIN)/python -m benchmarks.diagnose

# Measure the time from the start of a rank to its first batch, with a small corpus and with a large one.
bench-start-up: $(READY)
	$(BIN)/python -m benchmarks.start_up

# Send SIGTERM at random moments to ranks and hosts of every strategy under every launcher. Needs Linux and root.
bench-stops: $(READY)
	$(BIN)/python -m benchmarks.stops

# Train the examples in each of build/environments and compare every pair, for docs/parity.md: half an hour. It continues an
# interrupted run in build/versions. make test-environments makes the environments.
bench-versions: $(READY)
	$(BIN)/python -m benchmarks.versions

# Cause every fault three times, for docs/reliability.md. Needs Linux and root, to mount small disks; up to an hour.
faults: $(READY)
	$(BIN)/python -m benchmarks.faults

# Prove and train pairs of public models, for docs/models.md: about an hour. It continues an interrupted run in build/zoo.
zoo: $(READY)
	$(BIN)/python -m benchmarks.zoo

# Compare the three pairs of CrossedWires after each change, with the torchvision of $(TORCHVISION_PYTHON), as
# docs/crossed_wires.md says.
TORCHVISION_PYTHON := $(BIN)/python
crossed-wires: $(READY)
	$(BIN)/python -m benchmarks.crossed_wires $(TORCHVISION_PYTHON)

# Train these pairs after each change, and draw how far their losses are apart: about 45 minutes. It continues an
# interrupted run in build/crossed_wires.
crossed-wires-picture: $(READY)
	$(TORCHVISION_PYTHON) -m docs.draw_crossed_wires

# Python compiles a module when it is first imported. To compile all modules here would take more than half of the time.
$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "error: Python 3.11, 3.12 or 3.13 is needed"; exit 2; }
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv cache runs bench report.html report.json

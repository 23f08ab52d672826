# Every target installs what it needs into .venv. `e2e`, `demo`, `image` and `test` with CI=true also start a Kubernetes
# cluster (docs/local-kubernetes.md). Nothing else outside the tree changes.
SHELL := /bin/bash
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest
# uv, where it is installed, needs a fifth of pip's time. One target at a time installs.
INSTALLER := $(if $(shell command -v uv 2>/dev/null),uv pip install --python $(BIN)/python,$(BIN)/python -m pip install --disable-pip-version-check --no-compile)
INSTALL := flock $(VENV)/.lock $(INSTALLER) -q --no-deps
# What a target needs beside `venv`: $(call extra,spark plots). tools/locks has a file for each.
extra = $(patsubst %,$(VENV)/.extra-%,$(1))
# Tests start hundreds of brokers. Without cached bytecode, each start takes three times as long.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help prerequisites venv release compiled check lint types imports unit model sim wire hostile fuzz java jars java-if-there compat spark brokers kube cluster image e2e e2e-nodes demo demo-kubernetes bench bench-cluster bench-deployed bench-security bench-streams bench-queues bench-spark bench-tiered bench-earlier bench-instructions test test-again test-changed coverage coverage-map test-all nightly docs site lock clean

help:            ## list the targets
	@grep -hE '^[a-z0-9-]+: .*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z0-9-]+):.*## /\1\t/' | expand -t 12

prerequisites:   ## install, as root on Debian, or name the programs that a target needs: FOR=test
	@$(PYTHON) tools/prerequisites.py $(or $(FOR),test)
prerequisites-%:
	@$(PYTHON) tools/prerequisites.py $*

venv: $(VENV)/.stamp   ## the virtual environment of broker, operator and their tests, in a minute
$(VENV)/.stamp: tools/locks/dev.txt pyproject.toml
	@$(PYTHON) tools/prerequisites.py venv
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --require-hashes -r $<
	SHOAL_WHEEL=pure $(INSTALL) --no-index --no-build-isolation -e .
	@$(BIN)/python -m shoal.compile
	@touch $@
# The demo needs a part of these packages and some more, so it also installs into an empty environment.
$(VENV)/.extra-demo: tools/locks/demo.txt pyproject.toml
	@$(PYTHON) tools/prerequisites.py venv
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) --require-hashes -r $<
	@test -e $(VENV)/.stamp || SHOAL_WHEEL=pure $(INSTALL) --no-build-isolation -e .
	@$(BIN)/python -m shoal.compile
	@touch $@
# More packages: spark, jobs, docs, plots, fuzz.
$(VENV)/.extra-%: tools/locks/%.txt $(VENV)/.stamp
	$(INSTALL) --require-hashes -r $<
	@touch $@

compiled: venv   ## compile the extension modules, if there is a C compiler
	@$(BIN)/python -m shoal.compile

lint: venv       ## style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@PYTHONPATH=tools $(BIN)/python -m lint
types: venv      ## static types
	$(BIN)/mypy broker_image/shoal operator/shoal_operator spark_operator_jobs/shoal_spark tools tests
imports: venv    ## layers and forbidden imports
	$(BIN)/lint-imports
check: venv                 ## style, types, layers and unit tests; a minute on two cores once the linters have their caches
	@$(MAKE) --no-print-directory -j2 --output-sync=target lint types imports unit

unit wire model: venv       ## one kind of test
	$(PYTEST) -q -n 2 tests/$@
sim: venv                   ## simulations of quorums, replicas and clusters with faults; SEED=n repeats one
	$(PYTEST) -q tests/sim $(if $(SEED),-k one_seed)
hostile: venv               ## attackers beside a quiet client, which measures the broker's turns and memory; 10 minutes
	$(PYTEST) -q -m "nightly or not nightly" tests/hostile
fuzz: venv $(call extra,fuzz) ## fuzz the parsers for five minutes; FUZZ="--seconds 3600" for longer
	$(BIN)/python tests/wire/fuzz_parsers.py $(FUZZ)
java: jars venv  ## fetch what tests take from other projects: Kafka's clients and tools, axe-core, promtool
	PYTHONPATH=tests $(BIN)/python tests/support/runs/downloads.py
	@PYTHONPATH=tests $(BIN)/python -m support.kafka.class_archives
jars: prerequisites-java tests/compat/lib/.stamp
tests/compat/lib/.stamp: tests/compat/pom.xml
	@rm -rf tests/compat/lib # Jars of another release would be on the class path, too.
	mvn -q -f $< dependency:copy-dependencies -DoutputDirectory=lib
	@touch $@
compat: prerequisites-compat venv java ## test clients of other projects against real brokers
	CI=true $(PYTEST) -q tests/compat

spark: venv jars $(call extra,spark jobs plots) ## test the Spark source and its jobs in local mode
	$(PYTEST) -q tests/spark
brokers: venv               ## test clusters of real broker processes, with failures
	$(PYTEST) -q tests/cluster
kube: venv                  ## test the operator without a Kubernetes cluster
	$(PYTEST) -q tests/kube
cluster: venv               ## start a Kubernetes cluster: kind if there is Docker, otherwise a local node
	$(BIN)/python tests/e2e/cluster/cli.py up
image: venv                 ## build the images of broker, operator and Spark
	$(BIN)/python tests/e2e/cluster/cli.py build broker operator spark
release: venv $(call extra,release) ## build the artifacts of a release into dist/: VERSION=x, KEY=FILE signs (docs/releasing.md)
	PYTHONPATH=tests:tools $(BIN)/python -m release $(VERSION) $(if $(KEY),--key=$(KEY)) $(RELEASE)
e2e: venv jars $(call extra,spark plots) cluster ## test on a Kubernetes cluster, with kubectl, helm and clients in pods
	$(PYTEST) -q tests/e2e
	@$(MAKE) --no-print-directory e2e-nodes
e2e-nodes: venv $(call extra,spark plots) ## test racks and drains on a Kubernetes cluster of three nodes
	SHOAL_NODES=3 SHOAL_CLUSTER_INDEX=2 $(PYTEST) -q tests/e2e/test_nodes.py
demo: prerequisites-demo $(call extra,demo) ## run the image pipeline on this machine, with a live plot; 1 to 4 minutes with all downloads
	$(BIN)/shoal demo $(DEMO)
demo-kubernetes: prerequisites-demo-kubernetes $(call extra,plots) ## the same on Kubernetes, a cluster included; DEMO=--use-current-context for your own
	PYTHONPATH=tests $(BIN)/python examples/demo/demo.py $(DEMO)
bench: venv jars $(call extra,plots) ## compare one broker with Apache Kafka; 40 minutes
	$(BIN)/python bench/run.py $(BENCH)
bench-security: venv jars $(call extra,plots) ## compare TLS, logins and permissions with Apache Kafka
	$(BIN)/python bench/run_security.py $(BENCH)
bench-streams: venv jars $(call extra,plots) ## compare streams groups with Apache Kafka
	$(BIN)/python bench/run_streams.py $(BENCH)
bench-queues: venv jars $(call extra,plots) ## measure Shoal's additions to share groups and consumer groups
	@test -d bench/lib || mvn -q -f bench/parallel-consumer.xml dependency:copy-dependencies -DoutputDirectory=lib
	$(BIN)/python bench/queues.py $(BENCH)
bench-tiered: venv jars $(call extra,plots) ## compare tiered storage with the disk and with Apache Kafka; BENCH=--full for the sizes of the goals
	@test -d bench/kafka-tiered/lib || mvn -q -f bench/kafka-tiered/pom.xml dependency:copy-dependencies -DoutputDirectory=lib
	$(BIN)/python bench/tiered.py $(BENCH)
bench-cluster: venv jars $(call extra,plots) ## compare three brokers with Apache Kafka, with BENCH_KILLS=10 kills per row
	$(BIN)/python bench/run_cluster.py $(BENCH)
bench-deployed: venv jars $(call extra,plots) ## compare three brokers as deployed with Apache Kafka and NATS; BENCH_ROUNDS=3, BENCH_WARM=40
	$(BIN)/python bench/run_deployed.py $(BENCH)
bench-worker: venv           ## compare shoal.worker with a bare share session; BENCH="RECORDS PAIRS"
	$(BIN)/python bench/worker.py $(BENCH)
bench-celery: venv           ## compare shoal.worker with Celery on Redis and on Shoal; needs a Redis server (REDIS_SERVER) and its Python package
	$(BIN)/python bench/celery_jobs.py $(BENCH)
bench-up: venv               ## measure how soon `shoal up` is ready, and what it takes when idle
	$(BIN)/python bench/local_up.py $(BENCH)
bench-earlier: venv $(call extra,plots) ## compare this tree with an earlier one: COMMIT=3e8295a
	@test -n "$(COMMIT)" || { echo 'name the earlier tree: make bench-earlier COMMIT=3e8295a'; exit 2; }
	$(BIN)/python bench/run_earlier.py $(COMMIT) $(BENCH)
bench-instructions: venv     ## count a broker's instructions per request with valgrind, beside those of COMMIT
	PYTHONPATH=broker_image $(BIN)/python bench/instructions.py $(COMMIT)
bench-spark: prerequisites-java venv $(call extra,spark plots) ## compare the Spark source with Spark's Kafka source; BENCH=latency selects one figure
	@test -d bench/spark/lib || mvn -q -f bench/spark/pom.xml dependency:copy-dependencies -DoutputDirectory=lib
	$(BIN)/python bench/spark/run.py $(BENCH)
# The part of tests/e2e that CI runs: the chart's rendering, one install, one scale up and down, one roll, one uninstall.
E2E_CI := tests/e2e/test_chart.py $(addprefix tests/e2e/test_,install.py::test_the_notes_of_the_chart_lead_to_a_queue_that_works install.py::test_helm_test_passes spark_consumer.py::test_executors_follow_the_lag_to_zero three_brokers.py::test_a_roll_under_load_loses_no_record_and_hardly_repeats_one uninstall.py::test_uninstall_and_reinstall_over_kept_data)
# Test processes. Half of the tests wait for brokers, so twice as many as cores are busy (tests/support/runs/scheduling.py).
WORKERS ?= 4
# What takes long is in the output, so that CI stays within its time.
SLOWEST := --durations=25 --durations-min=5
TESTED := $(patsubst %,tests/%,unit model sim wire hostile kube cluster spark compat)
test: prerequisites-test venv java-if-there $(call extra,spark jobs plots) ## all tests without Kubernetes; says what it left out. CI=true adds a part of `e2e` and leaves nothing out
	$(PYTEST) -q $(SLOWEST) -n $(WORKERS) $(TESTED) $(if $(CI),$(E2E_CI))
	@$(PYTHON) tools/prerequisites.py --left-out test
# Those of three files at most: more is no accident. Each is named, whether it passes now or not.
AGAIN_FILES_MAX := 3
FAILED := .pytest_cache/v/cache/lastfailed
test-again: venv            ## the tests that failed in the last `make test`, one after the other, if they are of at most three files
	@$(BIN)/python -c 'import json; names = list(json.load(open("$(FAILED)"))); print("These failed beside other tests and run again, alone:", *names, sep="\n  "); exit(len({name.partition("::")[0] for name in names}) > $(AGAIN_FILES_MAX))'
	$(PYTEST) -q --last-failed --last-failed-no-failures=none $(TESTED) $(if $(CI),$(E2E_CI))
# `make java` where there is Java, also if it came a moment ago by apt.
java-if-there: venv
	@! type java mvn >/dev/null 2>&1 || $(MAKE) --no-print-directory java
test-changed: venv          ## the tests that a change can affect: SINCE=main (HEAD without it)
	@tests=$$(PYTHONPATH=tools $(BIN)/python -m changed_tests $(SINCE)) || exit $$?; test -z "$$tests" || $(PYTEST) -q -n $(WORKERS) $$tests
# The tests, all of their processes measured by coverage.py.
MEASURE = rm -rf build/coverage && mkdir -p build/coverage && \
	{ COVERAGE_RCFILE=tools/coverage.ini $(BIN)/python -m coverage run --rcfile=tools/coverage.ini -m pytest -q -n $(WORKERS) $(or $(FILES),$(TESTED)) || true; } && \
	$(BIN)/python -m coverage combine -q --rcfile=tools/coverage.ini build/coverage
coverage-map: venv java $(call extra,spark jobs plots) ## note which modules each file of tests runs, for `test-changed`; an hour
	$(MEASURE)
	PYTHONPATH=tools $(BIN)/python -m coverage_map
coverage: venv $(if $(FILES),,java $(call extra,spark jobs plots)) ## which lines the tests run, and which of a change they do not: SINCE=main, FILES=tests/unit; an hour for all
	$(MEASURE)
	PYTHONPATH=tools $(BIN)/python -m coverage_report $(SINCE)
test-all: test e2e          ## all tests, also on a Kubernetes cluster
nightly: prerequisites-nightly venv java $(call extra,spark jobs plots docs fuzz release) ## long tests, 90 minutes; NIGHTLY_HOURS=8 for a longer night
	PYTHONPATH=tests $(BIN)/python tests/support/runs/nightly.py

docs: venv                  ## generate pages of docs/, and types of responses and resources
	$(BIN)/python tools/config_page.py > docs/configs.md
	$(BIN)/python tools/compat_page.py > docs/compat.md
	$(BIN)/python tools/metrics_page.py > docs/metrics.md
	$(BIN)/python tools/crd_reference.py crds docs/reference
	$(BIN)/python tools/cli_page.py > docs/reference/cli.md
	$(BIN)/python tools/dashboards.py helm/shoal/dashboards
	$(BIN)/python bench/pages.py
	$(BIN)/python tools/response_types.py
	$(BIN)/python tools/resource_types.py
site: venv $(call extra,docs plots) ## build the documentation site into build/site, with all links checked, and test it
	$(PYTEST) -q tests/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --config-file tools/site/mkdocs.yml
	@echo "Open build/site/index.html."
lock: venv       ## pin all dependencies in tools/locks; LOCK=--upgrade takes the newest versions
	$(INSTALLER) -q uv
	$(BIN)/python tools/lock.py $(LOCK)
clean:           ## remove all files that the targets made in the tree
	rm -rf broker_image/shoal/coordinator/share/_share_native*.so broker_image/shoal/record/_record_native*.so $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis tests/compat/lib bench/lib bench/kafka-tiered/lib

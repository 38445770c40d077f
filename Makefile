# Every target makes its own .venv where it must; each can be the first command ever typed here.
# Variables: PYTHON (the interpreter for .venv), RANKS and ARGS (benchmarks), PYTEST_ARGS and
# WORKERS (tests), SECONDS (fuzz), CALLS and SEED (sanitize-module), COUNT and SEED (mutate),
# TORCH (test-torch), SPHINXOPTS (docs), OUT (gpu-day).
# OFFLINE=1: no .venv and no network. PYTHON itself is used, with what it has and with the wheels in
# the folder WHEELS (`make wheels` fills it elsewhere).

PYTHON ?= python3
RANKS ?= 2
SECONDS ?= 600
TORCH ?= 2.15.0
WORKERS ?= 4
CALLS ?= 1000000
SPHINXOPTS ?= --fail-on-warning --keep-going --quiet
SEED ?= 0
COUNT ?= 20
VENV := .venv
PY := $(VENV)/bin/python
# Python compiles what it imports; to compile all of torch, Triton and Ray takes a minute.
# One at a time: with `make -j2`, packages are installed while the sources are compiled.
PIP := flock $(VENV)/pyvenv.cfg $(PY) -m pip --quiet --disable-pip-version-check
WHEELS ?= build/wheels
TORCH_VENV := build/torch-$(TORCH)
FOR_PYTHON ?= 3.12
SOURCES := setup.py pyproject.toml CMakeLists.txt tools/stub.py $(shell find csrc -type f)

ifeq ($(MAKECMDGOALS),bench)
MAKEFLAGS += -j2
endif

ifdef OFFLINE
SITE := $(CURDIR)/build/offline/site
PY := $(PYTHON)
TO_TEST := build/offline/.built
TO_BENCH := build/offline/.built
export PYTHONPATH := $(CURDIR):$(SITE)
export PATH := $(SITE)/bin:$(PATH)
else
TO_TEST := $(VENV)/.installed $(VENV)/.group-test
TO_BENCH := $(VENV)/.installed $(VENV)/.group-bench
endif

# As many files of tests at a time as WORKERS; tests marked serial run alone.
PYTEST := $(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --max-worker-restart=0
# pytest on the test double of the CUDA driver and NCCL, which is used where there is a GPU, too.
DOUBLE := $(PYTEST) -p tests.doubles.plugin

# Compiling again what is compiled already, in another folder, takes seconds where ccache is installed.
ifneq ($(shell command -v ccache),)
export CMAKE_CXX_COMPILER_LAUNCHER ?= ccache
endif

# Python keeps what it has compiled, also where the environment says otherwise: pytest compiles all
# tests in each of its processes, and each command pynccl.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help check test test-all test-busy gpu-day test-integrations test-torch test-torch-suite rules sanitize sanitize-module fuzz abi \
  lint lint-fast tidy coverage mutate format hooks bench bench-calls bench-gpu bench-host bench-train bench-weights \
  plots-lab docs docs-links wheels wheels-check wheels-manylinux release clean

help:
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 20

bench: $(TO_BENCH) ## time pynccl, compared with torch.distributed (RANKS=2)
	$(PY) -m pynccl bench --ranks $(RANKS) $(ARGS)

bench-gpu: $(TO_BENCH) ## measure on the GPU with 1, 2 and 4 ranks; a report to docs/results
	$(PY) -m benchmarks.gpu $(ARGS)

bench-calls: $(VENV)/.installed $(VENV)/.group-bench $(VENV)/.group-peers ## time one call, compared with other bindings
	$(PY) -m benchmarks.calls --instructions $(ARGS)

bench-train: $(TO_BENCH) ## time training steps over the torch.distributed backend, compared with gloo
	$(PY) -m benchmarks.train $(ARGS)

bench-weights: $(TO_BENCH) ## time weights from a trainer to engines, compared with broadcasts
	$(PY) -m benchmarks.weights $(ARGS)

bench-host: $(VENV)/.installed $(VENV)/.group-bench $(VENV)/.group-peers ## time hostnccl, compared with gloo and MPICH
	$(PY) -m benchmarks.host $(ARGS)

plots-lab: $(TO_BENCH) ## measure the pictures of docs/lab.md on this machine
	$(PY) -m pynccl lab overlap --sizes 16M --load sleep --until-certain --plot docs/images/lab/lanes.png
	for example in ddp_buckets fsdp_prefetch own_step tensor_parallel pipeline; do \
	  $(PY) examples/lab/$$example.py --plot docs/images/lab/$$example.png || exit 1; done

check: lint-fast $(TO_TEST) ## the fast linters and the tests of tests/quick.txt: under a minute
	$(PY) -m pytest -q -m "not gpu" @tests/quick.txt $(PYTEST_ARGS)

# First what needs a GPU, on the double; PYTEST_ARGS may select none of it (pytest's status 5). What
# fails there does not keep the others from being run.
test: $(TO_TEST) ## run the tests without a GPU; those that need one run on the test double
	@status=0; \
	$(DOUBLE) -m "gpu or double" $(PYTEST_ARGS) || [ $$? -eq 5 ] || status=1; \
	$(PYTEST) -m "not gpu" $(PYTEST_ARGS) || status=1; \
	exit $$status

test-busy: $(TO_TEST) ## the tests beside two processes that use a CPU each
	@trap 'kill $$busy' EXIT; busy=; \
	for _ in 1 2; do $(PY) -c "while True: pass" & busy="$$busy $$!"; done; \
	$(MAKE) test

test-all: $(TO_TEST) ## also more seeds, all versions of the double, campaigns, PyTorch's suite, sanitizers
	for version in 2.18 2.24 2.28 2.30; do \
	  PYNCCL_DOUBLE=$$version $(DOUBLE) -m gpu $(PYTEST_ARGS) || [ $$? -eq 5 ] || exit 1; done
	PYNCCL_TEST_FULL=1 $(DOUBLE) -m "gpu or double" $(PYTEST_ARGS) || [ $$? -eq 5 ]
	PYNCCL_TEST_FULL=1 $(PYTEST) -m "not gpu" $(PYTEST_ARGS)
	$(PY) -m tests.reliability.random_programs --seconds 600
	$(PY) -m tests.c10d.kills --kills 300
	$(PY) -m tests.weights.interrupts --count 2000
	$(PY) -m tests.lab.verdicts --count 20
	$(MAKE) test-torch-suite sanitize
	$(MAKE) sanitize-module CALLS=100000

rules: $(TO_TEST) ## NCCL's rules, probed on the doubles and hostnccl: the number of unexplained differences (ARGS="host")
	$(PY) -m tests.rules.run $(ARGS)

OUT ?= build/gpu-day
gpu-day: $(TO_TEST) ## rules, tests and benchmarks that need a GPU, within ten minutes; a report in OUT
	$(PY) -m tests.gpu_day --out $(OUT) $(ARGS)

test-torch-suite: $(VENV)/.installed $(VENV)/.group-test ## PyTorch's own tests of torch.distributed, over pynccl
	$(PY) -m tests.support.torch_suite mirror --ranks 2 4 $(ARGS)
	$(PY) -m tests.support.torch_suite backend --ranks 2 4 $(ARGS)

test-integrations: $(VENV)/.installed ## weights, compat and the backend with released packages; prints rows of docs/integrations.md (ARGS="vllm")
	$(PY) -m tests.integrations.run $(ARGS)

test-torch: TESTS = tests/mirror tests/c10d
test-torch: $(VENV)/.installed $(TORCH_VENV)/.created ## the tests of the mirror and the backend with another torch (TORCH=2.15.0)
	PYTHONPATH=$(CURDIR) $(TORCH_VENV)/bin/python -m pytest -n $(WORKERS) --dist loadfile --max-worker-restart=0 -m "not gpu" $(TESTS) $(PYTEST_ARGS)

# Its packages are those of the tests, too: the reference imports every public module.
SITE_PACKAGES := $(VENV)/.installed $(VENV)/.group-test $(VENV)/.group-docs

docs: $(SITE_PACKAGES) ## build the documentation site in build/docs; a warning or a broken link is an error
	$(VENV)/bin/sphinx-build $(SPHINXOPTS) docs build/docs

docs-links: $(SITE_PACKAGES) ## follow the site's links to other sites, which needs the network
	$(VENV)/bin/sphinx-build --builder linkcheck docs build/docs-links

wheels: $(VENV)/.created ## fetch what a machine without a network lacks, into WHEELS (FOR_PYTHON=3.12)
	$(VENV)/bin/python -m pip --disable-pip-version-check download --quiet --constraint constraints.txt --group offline \
	  --only-binary=:all: --implementation cp --python-version $(FOR_PYTHON) --dest $(WHEELS) \
	  $(foreach glibc,39 34 31 28 27 24 17,--platform manylinux_2_$(glibc)_x86_64) --platform manylinux2014_x86_64
	rm -f $(WHEELS)/numpy-*.whl $(WHEELS)/typing_extensions-*.whl

wheels-check: $(VENV)/.group-release ## build the wheel and the source distribution, and try the wheel in an empty environment
	rm -rf build/wheel
	mkdir -p build/wheel
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(PY) -m build --outdir build/wheel . > build/wheel.log 2>&1 || \
	  { cat build/wheel.log; exit 1; }
	$(PY) -m twine check --strict build/wheel/*
	$(PYTHON) -m venv --without-pip build/wheel/env
	$(PIP) --python build/wheel/env/bin/python install -c constraints.txt numpy build/wheel/*.whl
	cd / && $(CURDIR)/build/wheel/env/bin/python $(CURDIR)/tests/package/installed.py

# The wheel is built from the source distribution, in isolation. Both have the time of the last commit.
release: $(VENV)/.group-release ## build the source distribution and the wheel of this Python in dist, and check them
	rm -rf dist build/release
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
	  $(PY) -m build --outdir build/release .
	PATH=$(CURDIR)/$(VENV)/bin:$$PATH $(PY) -m auditwheel repair --wheel-dir dist build/release/*.whl
	mv build/release/*.tar.gz dist
	$(PY) -m twine check --strict dist/*

# In containers of manylinux_2_28, from the source distribution in dist (`make release`).
wheels-manylinux: $(VENV)/.group-release ## build the wheels of all Pythons by cibuildwheel, which needs Docker
	SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) $(VENV)/bin/cibuildwheel --output-dir dist dist/rawnccl-*.tar.gz

abi: $(VENV)/.group-abi ## check csrc/abi against real nccl.h files and libraries
	$(PY) -m tests.abi.run --cache $(VENV)/abi

sanitize: $(VENV)/.group-build ## stress hostnccl under ThreadSanitizer, AddressSanitizer and UBSan
	$(PY) -m tests.stress.run

fuzz: $(VENV)/.installed $(VENV)/.group-test $(VENV)/.group-fuzz ## fuzz all readers and the calls of Python (SECONDS=600 in all)
	$(PY) -m tests.fuzz.run --seconds $(SECONDS)

sanitize-module: $(VENV)/.installed $(VENV)/.group-test ## random calls of the extension module under AddressSanitizer and UBSan
	$(PY) -m tests.stress.module $(CALLS) --seed $(SEED)

# Warnings are left to the build, which uses gcc.
tidy: export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
tidy: $(VENV)/.group-build $(VENV)/.group-gates ## check the C++ sources with clang-tidy
	cmake -B build/tidy -G Ninja --log-level=NOTICE -DCMAKE_EXPORT_COMPILE_COMMANDS=ON -DCMAKE_UNITY_BUILD=OFF \
	  -DPython_EXECUTABLE=$(CURDIR)/$(PY) -DCMAKE_PREFIX_PATH=$$($(PY) -m pybind11 --cmakedir)
	run-clang-tidy.py -quiet -p build/tidy -extra-arg=-Wno-everything '/csrc/'

# In a copy of the tree, since the libraries that count are installed in place. Ranks end by _exit(),
# before which at_exit.c has these libraries write what they counted.
COVERAGE := $(CURDIR)/build/coverage
coverage: export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
coverage: $(VENV)/.installed $(VENV)/.group-test $(VENV)/.group-gates ## which lines the tests run, to build/coverage (TESTS)
	rm -rf $(COVERAGE)/data $(COVERAGE)/tree
	mkdir -p $(COVERAGE)/data $(COVERAGE)/tree $(COVERAGE)/cpp
	git ls-files -z | xargs -0 cp --parents --target-directory=$(COVERAGE)/tree
	cmake -S $(COVERAGE)/tree -B $(COVERAGE)/cmake -G Ninja --log-level=NOTICE -DCMAKE_BUILD_TYPE=None \
	  -DCMAKE_CXX_FLAGS="-Og -g1 --coverage -fprofile-update=atomic -fprofile-abs-path" \
	  -DCMAKE_INTERPROCEDURAL_OPTIMIZATION=OFF -DCMAKE_INSTALL_MESSAGE=NEVER \
	  -DCMAKE_PROJECT_INCLUDE=$(CURDIR)/tests/support/coverage/flush.cmake \
	  -DPython_EXECUTABLE=$(CURDIR)/$(PY) -DCMAKE_PREFIX_PATH=$$($(PY) -m pybind11 --cmakedir)
	cmake --build $(COVERAGE)/cmake
	cmake --install $(COVERAGE)/cmake --prefix $(COVERAGE)/tree
	find $(COVERAGE)/cmake -name "*.gcda" -delete
	cc -shared -fPIC -O1 tests/support/coverage/at_exit.c -o $(COVERAGE)/at_exit.so -ldl
	cd $(COVERAGE)/tree && export PYTHONPATH=$$PWD COVERAGE_RCFILE=$$PWD/pyproject.toml LD_PRELOAD=$(COVERAGE)/at_exit.so && \
	  for double in "-p tests.doubles.plugin -m gpu\ or\ double" "-m not\ gpu"; do \
	    eval "coverage run -m pytest -q -p tests.support.coverage.workers -n $(WORKERS) --dist loadfile $$double $(TESTS)" || true; done
	cd $(COVERAGE)/tree && coverage combine --quiet && coverage html --quiet -d $(COVERAGE)/python && coverage report
	cd $(COVERAGE)/tree && gcovr --filter csrc/ --exclude-throw-branches --gcov-ignore-errors=no_working_dir_found \
	  --gcov-ignore-parse-errors=negative_hits.warn --gcov-ignore-parse-errors=suspicious_hits.warn \
	  --merge-mode-functions=merge-use-line-min --merge-lines --txt-summary --html-details $(COVERAGE)/cpp/index.html $(COVERAGE)/cmake

mutate: $(VENV)/.installed $(VENV)/.group-test ## which changes of the sources no test notices, to docs/quality.md (COUNT, SEED)
	$(PY) -m tools.mutate --count $(COUNT) --seed $(SEED) $(ARGS)

lint: lint-fast $(VENV)/.installed $(VENV)/.group-test $(VENV)/.group-bench $(VENV)/.group-abi ## check style and types
	$(VENV)/bin/mypy
	$(VENV)/bin/stubtest pynccl._C --mypy-config-file pyproject.toml --allowlist tests/package/stubtest_allowlist.txt
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	$(VENV)/bin/check-jsonschema --builtin-schema custom.github-workflows-require-timeout .github/workflows/*.yml
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.dependabot .github/dependabot.yml
	$(VENV)/bin/zizmor --offline --quiet .github

lint-fast: $(VENV)/.group-lint ## check style, dependencies and the subjects of commits
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cpp' '*.cu')
	$(VENV)/bin/python -m tools.dependencies
	$(VENV)/bin/python -m tools.commits

hooks: $(VENV)/.group-lint ## have git run the linters before each commit
	$(VENV)/bin/pre-commit install --hook-type pre-commit --hook-type commit-msg

format: $(VENV)/.group-lint ## rewrite the sources in the house style
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/clang-format -i $$(git ls-files '*.h' '*.cpp' '*.cu')

clean: ## remove all that was built
	rm -rf $(VENV) build dist benchmarks/out *.egg-info pynccl/include pynccl/lib pynccl/_C*.so pynccl/_C.pyi

$(VENV)/.created: constraints.txt
	$(PYTHON) -m venv $(VENV)
	@$(PIP) install -c constraints.txt --upgrade pip
	@touch $@

# torch 2.11 needs an older setuptools than the one that builds pynccl.
$(TORCH_VENV)/.created: constraints.txt pyproject.toml
	$(PYTHON) -m venv $(TORCH_VENV)
	sed '/^\(torch\|setuptools\)==/d' constraints.txt > $(TORCH_VENV)/constraints.txt
	$(TORCH_VENV)/bin/python -m pip --quiet install -c $(TORCH_VENV)/constraints.txt --upgrade pip
	$(TORCH_VENV)/bin/python -m pip --quiet install -c $(TORCH_VENV)/constraints.txt --no-compile torch==$(TORCH) --group test
	@touch $@

$(VENV)/.group-%: $(VENV)/.created pyproject.toml
	@echo "install the packages of the group $*"
	@$(PIP) install -c constraints.txt --no-compile --group $*
	@touch $@

# First what the compiler waits for.
$(VENV)/.group-bench $(VENV)/.group-test: | $(VENV)/.group-build

# $(call COMPILE,FOLDER): compile what has changed, and install it into the source tree.
define COMPILE
	@cmake -S . -B $(1) -G Ninja --log-level=NOTICE -DCMAKE_BUILD_TYPE=Release -DPYNCCL_WERROR=$(if $(OFFLINE),OFF,ON) -DCMAKE_INSTALL_MESSAGE=NEVER \
	  -DPython_EXECUTABLE=$$($(PY) -c "import sys; print(sys.executable)") \
	  -DCMAKE_PREFIX_PATH=$$($(PY) -m pybind11 --cmakedir)
	@MAKEFLAGS= cmake --build $(1)
	@cmake --install $(1) --prefix .
endef

$(VENV)/.installed: export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
$(VENV)/.installed: $(VENV)/.group-build $(SOURCES)
	$(call COMPILE,build/cmake)
	@PYTHONWARNINGS=ignore PYNCCL_BUILT=1 $(PIP) install -c constraints.txt --no-build-isolation -e .
	@touch $@

build/offline/.built: $(SOURCES) $(wildcard $(WHEELS)/*.whl)
	mkdir -p $(SITE)
	$(if $(wildcard $(WHEELS)/*.whl),$(PY) -m pip install --quiet --no-index --no-deps --upgrade --target $(SITE) $(WHEELS)/*.whl)
	$(call COMPILE,build/offline/cmake)
	@touch $@

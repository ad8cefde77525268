# Each target works alone from a fresh clone. PYTHON names the interpreter that makes .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq
INSTALL := $(PIP) install --constraint constraints.txt --editable
WORKERS ?= 2
BANK := The bank of the river was muddy. The money was deposited in the bank.

.PHONY: demo test test-transformers4 ui check docs bench clean

demo: $(VENV)/.demo
	$(BIN)/jumok look "$(BANK)"
	$(BIN)/jumok look "$(BANK)" --word bank --model smollm2
	$(BIN)/jumok look "an apple and orange" --against "apple phone" --word apple

test: ui
	scripts/browser
	$(BIN)/python -m pytest -n $(WORKERS)

# transformers 4 looks its attention functions up in another way: the lens on it, in an
# environment of its own (its Jamba runs on CUDA alone).
test-transformers4: $(VENV)-transformers4/.dev
	$(<D)/bin/python -m pytest -n $(WORKERS) -W ignore::DeprecationWarning \
		tests/lens/test_architectures.py -k "not jamba and not are_named"

# The page of `jumok view`, from ui/ into src/jumok/view/assets/, if a source has changed.
ui: $(VENV)/.dev
	$(BIN)/python ui/build.py

check: $(VENV)/.dev
	scripts/check

docs: $(VENV)/.dev
	$(BIN)/zensical build --clean --strict

bench: $(VENV)/.dev
	@set -e; for file in $(filter-out benchmarks/timing.py,$(wildcard benchmarks/*.py)); do \
		echo "== python $$file"; $(BIN)/python $$file; \
	done

clean:
	rm -rf $(VENV) $(VENV)-transformers4 build dist site ui/node_modules src/jumok/view/assets

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# A stamp is older than what it was made from only until the next install.
$(VENV)/.demo: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[torch,view]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(INSTALL) '.[dev]'
	@touch $@

$(VENV)-transformers4/.dev: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(@D)
	grep -vE '^(transformers|tokenizers|huggingface_hub)==' constraints.txt >$(@D)/constraints.txt
	$(@D)/bin/python -m pip --disable-pip-version-check -qq install \
		--constraint $(@D)/constraints.txt --editable '.[torch]' \
		hypothesis pytest pytest-xdist transformers==4.57.6
	@touch $@

# The targets make their own environment in .venv: with uv where it is installed, else with venv and pip.
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3; do command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(not (3,11) <= sys.version_info < (3,14))' 2>/dev/null && echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-torch test-video check bench clean

demo: $(VENV)/demo.stamp
	$(BIN)/python benchmarks/demo.py out/demo

test: $(VENV)/dev.stamp
	$(BIN)/python -m pytest -m "not slow"

# What needs the extra [torch]; TORCH says which build, e.g. TORCH=torch==2.13.0 for one from an index of your own.
TORCH ?= torch>=2.6
test-torch: $(VENV)/dev.stamp
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null
	$(BIN)/python -m pip install --quiet "$(TORCH)"
	$(BIN)/python -m pip install --quiet -e ".[torch]"
	FACEFLEET_REQUIRE=torch $(BIN)/python -m pytest -m "not slow" \
	  tests/unit/models tests/unit/backends tests/unit/ops/cuda tests/contract/test_backends.py tests/parity/test_engines.py tests/docs

# What needs the extra [video]. The tests of live streams run where Debian's GStreamer RTSP server is installed.
test-video: $(VENV)/dev.stamp
	$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null
	$(BIN)/python -m pip install --quiet -e ".[video]"
	FACEFLEET_REQUIRE=video $(BIN)/python -m pytest -m "not slow" \
	  tests/unit/sources/video tests/unit/sinks/video tests/unit/jobs/video tests/unit/tracks \
	  tests/unit/cli/test_video.py tests/docs/test_video_page.py tests/contract/test_videos.py tests/parity/test_video_tracks.py

check: $(VENV)/dev.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/lint-imports
	$(BIN)/typos

bench: $(VENV)/dev.stamp
	$(BIN)/facefleet bench quick out/demo/photos

$(VENV)/%.stamp: pyproject.toml
	@test -n "$(PYTHON)" || { echo "facefleet needs Python 3.11, 3.12 or 3.13; set PYTHON=..." >&2; exit 1; }
	@if command -v uv >/dev/null 2>&1; then \
	  test -x $(BIN)/python || uv venv --python "$(PYTHON)" $(VENV); \
	  uv pip install --python $(BIN)/python -e ".[$*]"; \
	else \
	  test -x $(BIN)/python || "$(PYTHON)" -m venv $(VENV); \
	  $(BIN)/python -m pip install --quiet --upgrade pip; \
	  $(BIN)/python -m pip install --quiet -e ".[$*]"; \
	fi
	@touch $@

clean:
	rm -rf $(VENV) out .mypy_cache .ruff_cache .pytest_cache

# The parts of `.ci/run`, each a command that can be run alone (https://just.systems).
# `.ci/run` is the whole check and needs no `just`.

# The sanitizers of the fuzz targets need the triple of this machine.
triple := `rustc -vV | sed -n 's/^host: //p'`

# Lists the recipes.
default:
    @just --list

# The whole check, as CI runs it.
check:
    bash .ci/run

# Formats the tree.
fmt:
    cargo fmt --all

# Fails if the tree is not formatted.
fmt-check:
    cargo fmt --all --check

# Downloads all locked packages. `deny` needs them.
fetch:
    cargo fetch --locked

# Lints everything, with warnings denied.
clippy:
    cargo clippy --locked --workspace --all-targets --all-features -- -D warnings

# Lints the crates that also build without std.
clippy-no-std:
    cargo clippy --locked -p handle-proto -p handle-snapshot -p handle-resolver --no-default-features -- -D warnings

# Builds the documentation, with warnings denied.
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --all-features --no-deps --quiet

# Checks sources, licences and bans of dependencies. Needs cargo-deny.
deny: fetch
    cargo deny --offline check --hide-inclusion-graph bans licenses sources

# Checks dependencies for advisories. Needs cargo-deny and the network.
advisories:
    cargo deny check advisories

# Builds all fuzz targets in one program, and runs each for some seconds. Needs cargo-fuzz.
fuzz seconds="5" seed="1": fuzz-build
    FUZZ_SECONDS={{ seconds }} FUZZ_SEED={{ seed }} bash .ci/fuzz target/{{ triple }}/release/all

# Builds all fuzz targets in one program, with a stable compiler and without LTO.
fuzz-build:
    RUSTC_BOOTSTRAP=1 CARGO_PROFILE_RELEASE_LTO=off cargo fuzz build --target {{ triple }} all

# Runs one fuzz target for some seconds. New inputs go to target/fuzz-found.
fuzz-one target seconds="60" seed="1":
    mkdir -p target/fuzz-found/{{ target }}
    RUSTC_BOOTSTRAP=1 CARGO_PROFILE_RELEASE_LTO=off cargo fuzz run --target {{ triple }} {{ target }} target/fuzz-found/{{ target }} fuzz/corpus/{{ target }} -- -seed={{ seed }} -max_total_time={{ seconds }} -dict=fuzz/dictionaries/handle.dict -print_final_stats=0 -verbosity=0

# Runs every bench once, over tiny sets and unoptimised.
bench-smoke:
    cargo test --workspace --locked --bench criterion

# Measures beside rivals: side-by-side, http-rate, caching or cache-trace.
rivals *args:
    cd benches/rivals && cargo run --release -- {{ args }}

# Counts the instructions of answers and compares them with their bounds. Needs valgrind.
instructions:
    cargo test --locked --release -p handle-fixtures --test instructions -- --nocapture
    cargo test --locked --release -p handle-gateway --test instructions

# Runs the tests of signatures with AWS-LC.
test-aws-lc:
    cargo test --locked -p handle-auth --features aws-lc --lib --test credentials

# Makes and tests the packages, the archive and the image of a release. Needs root on Debian.
release *steps:
    bash .ci/release {{ steps }}

# Runs all tests; with an argument, those whose name contains it. Ends with what was not tested.
test *filter:
    #!/usr/bin/env bash
    export HANDLE_NOT_TESTED=$PWD/target/not-tested.txt
    mkdir -p target && : >"$HANDLE_NOT_TESTED"
    cargo test --workspace --locked {{ filter }}
    result=$?
    sort -u "$HANDLE_NOT_TESTED"
    exit $result
